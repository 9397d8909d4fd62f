// SPDX-License-Identifier: Apache-2.0
#include "kernels/check/mirror.h"

#include "kernels/error.h"

#include <iterator>

namespace quadrille::check {

Mirror::~Mirror() {
    for (const auto& [work, block] : blocks_) host_.release(block.copy);
}

void Mirror::add(void* work, int64_t bytes) {
    if (work == nullptr) return;
    blocks_[static_cast<const char*>(work)] = {static_cast<char*>(host_.allocate(bytes)), bytes};
}

void Mirror::remove(void* work) noexcept {
    const auto found = blocks_.find(static_cast<const char*>(work));
    if (found == blocks_.end()) return;
    host_.release(found->second.copy);
    blocks_.erase(found);
}

char* Mirror::find(const void* work, int64_t bytes) const {
    const auto* pointer = static_cast<const char*>(work);
    const auto next = blocks_.upper_bound(pointer);
    constexpr const char* kClaim = "check: an argument inside one allocation of the backend";
    require(next != blocks_.begin(), kClaim);
    const auto& [start, block] = *std::prev(next);
    const int64_t offset = pointer - start;
    require(bytes >= 0 && offset + bytes <= block.bytes, kClaim);
    return block.copy + offset;
}

Matrix ToHost::operator()(Matrix work) const {
    if (work.weights != nullptr) {
        work.weights =
            (*this)(static_cast<const char*>(work.weights), work.n * work.k * size_of(work.dtype));
    }
    if (work.is_exl3()) {
        work.trellis = (*this)(work.trellis, work.k_padded * work.n_padded / 16 * work.bits);
        work.suh = (*this)(work.suh, work.k_padded);
        work.svh = (*this)(work.svh, work.n_padded);
    }
    work.bias = (*this)(work.bias, work.n);
    return work;
}

Mlp ToHost::operator()(const Mlp& work) const {
    return {(*this)(work.gate), (*this)(work.up), (*this)(work.down)};
}

Rows ToHost::operator()(Rows work) const {
    work.begin = (*this)(work.begin, work.sequences + 1);
    work.slot = (*this)(work.slot, work.sequences);
    work.position = (*this)(work.position, work.sequences);
    work.pending = (*this)(work.pending, work.sequences);
    work.row_sequence = (*this)(work.row_sequence, work.m);
    return work;
}

KdaState ToHost::operator()(KdaState work) const {
    return {(*this)(work.state), (*this)(work.conv), (*this)(work.pending_qkv),
            (*this)(work.pending_decay), (*this)(work.pending_beta)};
}

IndexCache ToHost::operator()(IndexCache work) const {
    return {(*this)(work.pools), (*this)(work.ring), work.ring_size};
}

DraftCache ToHost::operator()(DraftCache work) const {
    return {(*this)(work.keys), (*this)(work.values), work.ring_size};
}

KdaWeights ToHost::operator()(KdaWeights work, const KdaParams& params) const {
    const int64_t c = int64_t{params.heads} * params.head_dim;
    work.conv = (*this)(work.conv, 3 * c * params.taps);
    work.a_log = (*this)(work.a_log, params.heads);
    work.dt_bias = (*this)(work.dt_bias, c);
    work.o_norm = (*this)(work.o_norm, params.head_dim);
    return work;
}

MoeWeights ToHost::operator()(MoeWeights work) {
    const Mlp* const table = (*this)(work.experts, work.count);
    std::vector<Mlp>& experts = experts_.emplace_back();
    for (int32_t i = 0; i < work.count; ++i) experts.push_back((*this)(table[i]));
    work.experts = experts.data();
    work.host_experts = experts.data();
    work.shared = (*this)(work.shared);
    return work;
}

const SampleRow* ToHost::operator()(const SampleRow* work, int64_t count) {
    if (work == nullptr) return nullptr;
    const auto* const table =
        reinterpret_cast<const SampleRow*>(mirror_.find(work, count * int64_t{sizeof(SampleRow)}));
    std::vector<SampleRow>& rows = samples_.emplace_back(table, table + count);
    for (SampleRow& row : rows) {
        if (row.penalty == 1.0f) continue;
        row.seen = (*this)(row.seen, 1);
        row.drafts = row.draft_count > 0 ? (*this)(row.drafts, row.draft_count) : nullptr;
    }
    return rows.data();
}

std::span<const Product> ToHost::operator()(std::span<const Product> work) {
    std::vector<Product>& products = products_.emplace_back(work.begin(), work.end());
    for (Product& product : products) {
        product.out = (*this)(product.out);
        product.in = (*this)(product.in);
        product.weight = (*this)(product.weight);
    }
    return products;
}

KdaPass ToHost::operator()(KdaPass work) const {
    work.out = (*this)(work.out);
    work.qkv = (*this)(work.qkv);
    work.f = (*this)(work.f);
    work.b = (*this)(work.b);
    work.g = (*this)(work.g);
    return work;
}

DraftBlock ToHost::operator()(DraftBlock work, const DraftAttentionParams& params) const {
    work.query = (*this)(work.query);
    work.key = (*this)(work.key);
    work.value = (*this)(work.value);
    work.q_norm = (*this)(work.q_norm, params.head_dim);
    work.k_norm = (*this)(work.k_norm, params.head_dim);
    return work;
}

WalkInput ToHost::operator()(WalkInput work, int64_t sequences) {
    work.values = (*this)(work.values);
    work.ids = (*this)(work.ids);
    work.projected = (*this)(work.projected);
    work.predecessor = (*this)(work.predecessor);
    work.successor = (*this)(work.successor);
    work.anchor = (*this)(work.anchor, sequences);
    work.draws = (*this)(work.draws, sequences);
    return work;
}

SampleInput ToHost::operator()(SampleInput work) {
    work.logits = (*this)(work.logits);
    work.rows = (*this)(work.rows, work.count);
    return work;
}

}  // namespace quadrille::check
