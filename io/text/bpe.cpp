// SPDX-License-Identifier: Apache-2.0
// Pairs wait in a heap ordered by (rank, position); an entry whose pair has changed meanwhile is
// dropped when it comes up.
#include "io/text/bpe.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <bit>
#include <queue>

namespace quadrille {

namespace {

size_t hash(uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    return static_cast<size_t>(key ^ key >> 32);
}

}  // namespace

Bpe::Bpe(const TokenizerFile& file, const std::string& place) : ignore_merges_(file.ignore_merges) {
    bytes_.fill(-1);
    tokens_.reserve(file.tokens.size());
    for (size_t id = 0; id < file.tokens.size(); ++id) {
        const TokenizerFile::Token& token = file.tokens[id];
        if (!token.encodable) continue;
        tokens_.emplace(token.bytes, static_cast<int32_t>(id));
        if (token.bytes.size() == 1) {
            bytes_[static_cast<uint8_t>(token.bytes[0])] = static_cast<int32_t>(id);
        }
    }
    for (size_t byte = 0; byte < bytes_.size(); ++byte) {
        if (bytes_[byte] >= 0) continue;
        throw Error(ErrorKind::input,
                    fmt::format("{}: model.vocab: expected a token for every byte, found none for "
                                "0x{:02x}",
                                place, byte));
    }
    slots_.resize(std::bit_ceil(2 * file.merges.size() + 2), Slot{0, {-1, 0}});
    for (size_t rank = 0; rank < file.merges.size(); ++rank) {
        const uint64_t key = pair(file.merges[rank].first, file.merges[rank].second);
        size_t at = hash(key) & (slots_.size() - 1);
        while (slots_[at].merge.rank >= 0 && slots_[at].key != key) {
            at = (at + 1) & (slots_.size() - 1);
        }
        // A merge that is repeated counts the last time, as in the reference implementation.
        slots_[at] = {key, {static_cast<int32_t>(rank), file.merged[rank]}};
    }
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
    const uint64_t key = pair(left, right);
    for (size_t at = hash(key) & (slots_.size() - 1); slots_[at].merge.rank >= 0;
         at = (at + 1) & (slots_.size() - 1)) {
        if (slots_[at].key == key) return &slots_[at].merge;
    }
    return nullptr;
}

void Bpe::merge(std::vector<Symbol>& symbols) const {
    struct Candidate {
        int32_t rank;
        int32_t left;  // position of its left symbol
        int32_t id;    // the token it makes
        bool operator>(const Candidate& other) const {
            return rank != other.rank ? rank > other.rank : left > other.left;
        }
    };
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto at = [&](int32_t index) -> Symbol& { return symbols[static_cast<size_t>(index)]; };
    const auto offer = [&](int32_t left) {
        if (left < 0 || at(left).next < 0) return;
        const Merge* found = find(at(left).id, at(at(left).next).id);
        if (found) queue.push({found->rank, left, found->id});
    };
    for (int32_t i = 0; i + 1 < std::ssize(symbols); ++i) offer(i);
    while (!queue.empty()) {
        const Candidate best = queue.top();
        queue.pop();
        Symbol& left = at(best.left);
        if (left.id < 0 || left.next < 0) continue;
        Symbol& right = at(left.next);
        const Merge* found = find(left.id, right.id);
        if (!found || found->rank != best.rank) continue;
        left.id = best.id;
        left.next = right.next;
        right.id = -1;
        if (left.next >= 0) at(left.next).previous = best.left;
        offer(left.previous);
        offer(best.left);
    }
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
    if (piece.empty()) return;
    if (ignore_merges_) {
        const auto whole = tokens_.find(piece);
        if (whole != tokens_.end()) {
            ids.push_back(whole->second);
            return;
        }
    }
    std::vector<Symbol> symbols(piece.size());
    const auto count = static_cast<int32_t>(piece.size());
    for (int32_t i = 0; i < count; ++i) {
        const auto byte = static_cast<uint8_t>(piece[static_cast<size_t>(i)]);
        symbols[static_cast<size_t>(i)] = {bytes_[byte], i - 1, i + 1 < count ? i + 1 : -1};
    }
    merge(symbols);
    for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
        ids.push_back(symbols[static_cast<size_t>(i)].id);
    }
}

}  // namespace quadrille
