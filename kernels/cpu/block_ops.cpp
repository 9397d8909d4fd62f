// SPDX-License-Identifier: Apache-2.0
// What ties the parts of a decode step together: blocks from drafts, acceptance, one choice from
// those of several ranks.
#include "kernels/contract.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/error.h"

#include <algorithm>

namespace quadrille::cpu {

void CpuBackend::block_tokens(int32_t* tokens, const int32_t* anchor, View<const int32_t> path,
                              const Rows& rows) {
    contract::block_tokens(tokens, anchor, path, rows);
    for (int32_t i = 0; i < rows.sequences; ++i) {
        const int32_t first = rows.begin[i];
        const int32_t end = rows.begin[i + 1];
        if (rows.slot[i] < 0) {
            std::fill(tokens + first, tokens + end, -1);
            continue;
        }
        require(end - first <= path.cols + 1, "block_tokens: no block longer than its path");
        require(path.cols == 0 || i < path.rows, "block_tokens: a path for each sequence");
        for (int32_t r = first; r < end; ++r) {
            tokens[r] = r == first ? anchor[i] : path.row(i)[r - first - 1];
        }
    }
}

void CpuBackend::mark_accepted(uint8_t* write, const int32_t* tokens, const int32_t* target,
                               const Rows& rows) {
    contract::mark_accepted(write, tokens, target, rows);
    std::fill_n(write, (rows.m + 3) / 4 * 4, uint8_t{0});
    for (int32_t i = 0; i < rows.sequences; ++i) {
        if (rows.slot[i] < 0) continue;
        for (int32_t r = rows.begin[i]; r < rows.begin[i + 1]; ++r) {
            if (r > rows.begin[i] && tokens[r] != target[r - 1]) break;
            write[r] = 1;
        }
    }
}

void CpuBackend::merge_samples(int32_t* id, const double* scores, const int32_t* ids, int32_t m,
                               int32_t count, int64_t part_bytes) {
    contract::merge_samples(id, scores, ids, m, count, part_bytes);
    for (int32_t r = 0; r < m; ++r) {
        double best = 0.0;
        id[r] = -1;
        for (int32_t part = 0; part < count; ++part) {
            const double score = scores[part * part_bytes / 8 + r];
            const int32_t other = ids[part * part_bytes / 4 + r];
            if (other < 0 || (id[r] >= 0 && !(score > best))) continue;
            best = score;
            id[r] = other;
        }
    }
}

}  // namespace quadrille::cpu
