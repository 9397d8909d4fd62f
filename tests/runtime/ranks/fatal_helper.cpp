// SPDX-License-Identifier: Apache-2.0
// A job that dies in a given way, for fatal_test.py: all ranks meet in a barrier over and over, one
// of them (the last) leaves. fatal_helper throw|other|nested|thread|hang
#include "kernels/error.h"
#include "runtime/ranks/fatal.h"
#include "runtime/ranks/mpi.h"

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

using namespace quadrille;

// In a destructor that runs while unwinding, a second exception: std::terminate.
struct ThrowsAgain {
    ~ThrowsAgain() noexcept(false) { throw Error(ErrorKind::device, "second exception"); }
};

void die(const std::string& way) {
    if (way == "other") throw std::out_of_range("index 9 of 3");
    if (way == "nested") {
        const ThrowsAgain again;
        throw Error(ErrorKind::device, "first exception");
    }
    if (way == "thread") {
        std::thread([] { throw Error(ErrorKind::io, "thrown in a thread"); }).join();
    }
    throw Error(ErrorKind::io, "disk full");
}

}  // namespace

int main(int, char** argv) {
    const std::string way = argv[1];
    MpiSession session;
    Position position;
    Fatal fatal({session.rank(), session.size(), session.host()}, position, &MpiSession::abort);
    fatal.at_end([&] { std::fprintf(stderr, "hook one of rank %d\n", session.rank()); });
    fatal.at_end([&] {
        if (way == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
        throw Error(ErrorKind::io, "hook two fails");
    });
    fatal.at_abort([&] {
        std::fprintf(stderr, "last hook of rank %d\n", session.rank());
        if (way == "last") std::this_thread::sleep_for(std::chrono::hours(1));
    });
    fatal.on_error([&](const Error& error) {
        std::fprintf(stderr, "rank %d is told: %s\n", session.rank(), error.what());
    });
    return fatal.guard([&]() -> int {
        for (int step = 0;; ++step) {
            position.enter(step, "barrier");
            session.world().barrier();
            position.layer(3);
            position.op("moe");
            if (step == 118 && session.rank() == session.size() - 1) die(way);
        }
    });
}
