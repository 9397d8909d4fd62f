// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <new>
#include <string>
#include <vector>

namespace quadrille {
namespace {

struct Note {
    int64_t kind = 0;    // 0: no error
    uint64_t phase = 0;  // hash of its name
};

// FNV-1a: any fixed hash serves, as long as all ranks use the same.
uint64_t hash_of(std::string_view text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char letter : text) {
        hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
    }
    return hash;
}

}  // namespace

std::vector<std::string> gather_texts(Communicator& comm, const std::string& own) {
    const auto size = static_cast<size_t>(comm.size());
    std::vector<int64_t> lengths(size);
    const int64_t length = std::ssize(own);
    comm.all_gather_host(lengths.data(), &length, sizeof length);
    const int64_t longest = std::ranges::max(lengths);
    std::string padded = own;
    padded.resize(static_cast<size_t>(longest));
    std::string all(static_cast<size_t>(longest) * size, '\0');
    comm.all_gather_host(all.data(), padded.data(), longest);
    std::vector<std::string> texts;
    for (size_t rank = 0; rank < size; ++rank) {
        texts.push_back(
            all.substr(rank * static_cast<size_t>(longest), static_cast<size_t>(lengths[rank])));
    }
    return texts;
}

Error as_error(std::exception_ptr exception) {
    try {
        std::rethrow_exception(std::move(exception));
    } catch (const Error& error) {
        return error;
    } catch (const std::bad_alloc&) {
        return Error(ErrorKind::device, "out of host memory");
    } catch (const std::exception& error) {
        return Error(ErrorKind::internal, error.what());
    } catch (...) {
        return Error(ErrorKind::internal, "an exception that is no std::exception");
    }
}

void agree_on(Communicator& comm, std::string_view phase, std::exception_ptr error,
              std::span<const std::string> hosts) {
    std::optional<Error> own;
    if (error) own = as_error(error);
    const std::string message = own ? own->what() : "";
    const Note note{own ? own->exit_code() : 0, hash_of(phase)};
    std::vector<Note> notes(static_cast<size_t>(comm.size()));
    comm.all_gather_host(notes.data(), &note, sizeof(Note));

    // Every rank sees the same notes, so all leave here in the same way.
    const auto astray = std::ranges::find_if(
        notes, [&notes](const Note& other) { return other.phase != notes.front().phase; });
    if (astray != notes.end()) {
        throw AgreedError(ErrorKind::internal,
                          fmt::format("start-up: ranks 0 and {} are in different phases",
                                      astray - notes.begin()));
    }
    const auto first =
        std::ranges::find_if(notes, [](const Note& other) { return other.kind != 0; });
    if (first == notes.end()) return;

    const std::vector<std::string> messages = gather_texts(comm, message);
    const auto rank = static_cast<size_t>(first - notes.begin());
    bool everywhere = true;
    for (size_t other = 0; other < notes.size(); ++other) {
        everywhere =
            everywhere && notes[other].kind == first->kind && messages[other] == messages[rank];
    }
    const bool named = std::ranges::adjacent_find(hosts, std::not_equal_to<>{}) != hosts.end();
    const std::string who =
        named ? fmt::format("{} on {}", rank, hosts[rank]) : fmt::to_string(rank);
    throw AgreedError(
        static_cast<ErrorKind>(first->kind),
        everywhere ? messages[rank] : fmt::format("{} (rank {})", messages[rank], who),
        own ? own->where() : std::source_location::current());
}

}  // namespace quadrille
