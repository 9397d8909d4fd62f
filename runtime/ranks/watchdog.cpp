// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/watchdog.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <tuple>

namespace quadrille {
namespace {

using namespace std::chrono_literals;

constexpr auto kPoll = 100ms;
constexpr auto kPollAtTheEnd = 2ms;
constexpr auto kTell = 1s;
// A gap this long between two polls means that this very process was stopped: what the others
// did meanwhile is unknown, and the whole job may have been suspended.
constexpr auto kGap = 2s;
// Ranks report one after the other, so that one line is printed: the first ends the job, which
// takes up to a second, and they learn of a stand-still up to a second apart.
constexpr auto kTurn = 2s;
constexpr int kTurns = 4;
// A process that hangs in a read still runs its helpers' threads now and then: less than this and
// a fiftieth of the time is no work.
constexpr auto kIdle = 50ms;

Watchdog::Clock::duration time_of(clockid_t clock) {
    timespec time{};
    ::clock_gettime(clock, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Processor time of the process, without the thread that asks.
Watchdog::Clock::duration time_used() {
    return time_of(CLOCK_PROCESS_CPUTIME_ID) - time_of(CLOCK_THREAD_CPUTIME_ID);
}

}  // namespace

Watchdog::Watchdog(const MpiSession& session, const Position& position, Fatal& fatal,
                   Launcher launcher, std::chrono::seconds limit, std::vector<int> group_of_rank)
    : mailbox_(session.duplicate(), sizeof(Message)),
      hosts_(session.hosts()),
      groups_(std::move(group_of_rank)),
      position_(position),
      fatal_(fatal),
      launcher_(launcher),
      patience_(Clock::duration(limit) * 3 / 4),
      peers_(static_cast<size_t>(session.size())),
      told_good_bye_(static_cast<size_t>(session.size()), false) {
    require(limit >= 4s, "a watchdog with a limit of at least 4 s");
    if (groups_.empty()) groups_.resize(peers_.size(), 0);
    require(groups_.size() == peers_.size(), "a group of every rank");
    moved_ = Clock::now();
    for (Peer& peer : peers_) peer.heard = peer.moved = moved_;
    peers_[static_cast<size_t>(mailbox_.rank())].left = true;
    thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
    leaving_.store(true);
    thread_.join();
}

void Watchdog::run() try {
    Clock::time_point last_poll = Clock::now();
    Clock::time_point last_told{};
    while (true) {
        const bool leaving = leaving_.load();
        const Clock::time_point now = Clock::now();
        if (now - last_poll > kGap) {
            for (Peer& peer : peers_) peer.heard = peer.moved = now;
            moved_ = now;
        }
        last_poll = now;
        bool told = false;
        if (leaving || now - last_told >= kTell) {
            told = tell(leaving);
            last_told = now;
        }
        listen(now);
        if (leaving && told && all_left()) return;
        if (launcher_.gone())
            fatal_.end(Error(ErrorKind::comm, "the launcher of this rank is gone"));
        judge_own(now);
        judge(now);
        std::this_thread::sleep_for(leaving ? Clock::duration(kPollAtTheEnd)
                                            : Clock::duration(kPoll));
    }
} catch (...) {
    fatal_.end(std::current_exception());
}

Watchdog::Message Watchdog::own_message(bool leaving) const {
    Message message{.step = position_.step(),
                    .marks = position_.marks(),
                    .layer = position_.layer(),
                    .leaving = leaving ? 1 : 0};
    const char* const op = position_.op();
    std::copy_n(op, std::min(std::strlen(op), sizeof(message.op) - 1), message.op);
    return message;
}

bool Watchdog::tell(bool leaving) {
    const Message message = own_message(leaving);
    bool all_sent = true;
    for (int rank = 0; rank < mailbox_.size(); ++rank) {
        if (rank == mailbox_.rank()) continue;
        const auto index = static_cast<size_t>(rank);
        if (!told_good_bye_[index])
            told_good_bye_[index] = mailbox_.post(rank, &message) && leaving;
        all_sent = all_sent && told_good_bye_[index] && mailbox_.sent(rank);
    }
    return all_sent;
}

void Watchdog::listen(Clock::time_point now) {
    for (int rank = 0; rank < mailbox_.size(); ++rank) {
        Peer& peer = peers_[static_cast<size_t>(rank)];
        if (rank == mailbox_.rank()) {
            const Message own = own_message(false);
            if (own.marks != peer.last.marks || own.step != peer.last.step) peer.moved = now;
            peer.last = own;
            continue;
        }
        Message message;
        while (!peer.left && mailbox_.take(rank, &message)) {
            peer.heard = now;
            if (message.marks != peer.last.marks || message.step != peer.last.step) {
                peer.moved = now;
            }
            peer.last = message;
            peer.left = message.leaving != 0;
        }
    }
}

bool Watchdog::all_left() const {
    return std::ranges::all_of(peers_, [](const Peer& peer) { return peer.left; });
}

void Watchdog::judge_own(Clock::time_point now) {
    const int64_t signs = position_.signs();
    const Clock::duration used = time_used();
    const bool worked = used - used_ > kIdle + (now - moved_) / 50;
    if (!position_.busy() || signs != signs_ || worked) {
        signs_ = signs;
        used_ = used;
        moved_ = now;
    }
    // Ranks that hang together report one after the other, so that one line is printed.
    const Clock::duration turn = kTurn * std::min(mailbox_.rank(), kTurns);
    if (now - moved_ <= patience_ + turn) return;
    fatal_.end(
        Error(ErrorKind::comm,
              fmt::format("rank {} ({}) has not moved for {} s, at {}", mailbox_.rank(),
                          hosts_[static_cast<size_t>(mailbox_.rank())],
                          std::chrono::duration_cast<std::chrono::seconds>(now - moved_).count(),
                          position_.text())));
}

void Watchdog::judge(Clock::time_point now) {
    const auto silent = [&](const Peer& peer, Clock::duration patience) {
        return !peer.left && now - peer.heard > patience;
    };
    const auto own = peers_.begin() + mailbox_.rank();
    const Clock::duration turn = kTurn * std::count_if(peers_.begin(), own, [&](const Peer& peer) {
                                     return !silent(peer, patience_);
                                 });
    for (size_t rank = 0; rank < peers_.size(); ++rank) {
        if (silent(peers_[rank], patience_ + turn)) {
            report(static_cast<int>(rank), "has been silent", now - peers_[rank].heard);
        }
    }
    // Once some have left there is nothing to compare; and a rank alone keeps nobody waiting.
    const bool ending = leaving_.load() || std::ranges::any_of(peers_, [](const Peer& peer) {
                            return peer.last.leaving != 0;
                        });
    if (peers_.size() == 1 || ending) return;
    for (int group = 0; group <= std::ranges::max(groups_); ++group) judge_group(group, now, turn);
}

// All of a group are there, nobody moves: they wait for the one that is behind. Before the first
// step there is nothing to compare.
void Watchdog::judge_group(int group, Clock::time_point now, Clock::duration turn) {
    std::vector<size_t> members;
    for (size_t rank = 0; rank < peers_.size(); ++rank) {
        if (groups_[rank] == group) members.push_back(rank);
    }
    const bool stuck = std::ranges::all_of(members, [&](size_t rank) {
        const Peer& peer = peers_[rank];
        return peer.last.step >= 0 && now - peer.moved > patience_ + turn;
    });
    if (!stuck || members.empty()) return;
    const size_t behind = *std::ranges::min_element(members, {}, [&](size_t rank) {
        return std::tuple(peers_[rank].last.step, peers_[rank].last.marks);
    });
    report(static_cast<int>(behind), "has not moved", now - peers_[behind].moved);
}

void Watchdog::report(int rank, const std::string& what, Clock::duration time) {
    const auto index = static_cast<size_t>(rank);
    const Message& last = peers_[index].last;
    fatal_.end(
        Error(ErrorKind::comm,
              fmt::format("rank {} ({}) {} for {} s, last seen at {}", rank, hosts_[index], what,
                          std::chrono::duration_cast<std::chrono::seconds>(time).count(),
                          position_text(last.step, last.layer, last.op))));
}

}  // namespace quadrille
