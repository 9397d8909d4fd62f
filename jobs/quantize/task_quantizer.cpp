// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/task_quantizer.h"

#include "io/checkpoint/fp8.h"
#include "io/digest.h"
#include "kernels/error.h"
#include "kernels/quantize/input_factor.h"
#include "kernels/quantize/quantize_matrix.h"

#include <fmt/format.h>

#include <list>
#include <map>
#include <string>

namespace quadrille {
namespace {

constexpr int64_t kMostLeftOut = 10;  // a row in so many

// A seed of its own for each use, the same in every run.
uint64_t seed_of(uint64_t seed, const std::string& use) {
    Digest digest;
    digest.add(seed);
    digest.add(use);
    return std::stoull(digest.hex(), nullptr, 16);
}

void check_rows(const std::string& module, const InputSum& sum) {
    if (sum.left_out() * kMostLeftOut <= sum.rows() + sum.left_out()) return;
    throw Error(ErrorKind::input,
                fmt::format("module {}: expected finite inputs from the calibration text, found "
                            "infinity or NaN in {} of {} rows",
                            module, sum.left_out(), sum.rows() + sum.left_out()));
}

}  // namespace

QuantizedTask TaskQuantizer::run(const PlannedTask& task,
                                 const std::vector<const InputSum*>& sums) const {
    std::map<std::pair<const InputSum*, int64_t>, InputFactor> factors;
    std::list<std::vector<float>> weights;
    std::vector<MatrixToQuantize> matrices;
    for (size_t i = 0; i < task.matrices.size(); ++i) {
        const PlannedMatrix& matrix = task.matrices[i];
        const std::pair key(sums[i], matrix.k);
        if (!factors.contains(key)) {
            const FactorOptions options{.seed = seed_of(settings_.seed, matrix.module + " inputs"),
                                        .threads = settings_.threads};
            if (sums[i] == nullptr || sums[i]->rows() == 0) {
                factors.emplace(key, plain_inputs(matrix.k, options));
            } else {
                check_rows(matrix.module, *sums[i]);
                const std::vector<float> hessian = sums[i]->hessian();
                factors.emplace(key, factor_inputs(matrix.module,
                                                   {hessian.data(), matrix.k, matrix.k}, options));
            }
        }
        std::vector<float>& values = weights.emplace_back(static_cast<size_t>(matrix.n * matrix.k));
        NativeMatrix(source_, matrix.module, matrix.n, matrix.k).read(values);
        matrices.push_back({.name = matrix.module,
                            .weights = {values.data(), matrix.n, matrix.k},
                            .inputs = &factors.at(key),
                            .seed = seed_of(settings_.seed, matrix.module + " outputs")});
    }
    QuantizedTask result;
    result.matrices = quantize_matrices(
        encoder_, matrices,
        {.code = {.bits = static_cast<int32_t>(task.bits), .codebook = settings_.codebook},
         .threads = settings_.threads});
    for (size_t i = 0; i < task.matrices.size(); ++i) {
        const QuantizedMatrix& matrix = result.matrices[i];
        const double weight = matrix.squared_weights;
        result.records.push_back(
            {.module = task.matrices[i].module,
             .kind = name(task.kind),
             .n = matrix.n,
             .k = matrix.k,
             .bits = task.bits,
             .rows = sums[i] == nullptr ? 0 : sums[i]->rows(),
             .left_out = sums[i] == nullptr ? 0 : sums[i]->left_out(),
             .proxy_error = matrix.proxy_error,
             .relative_error = weight > 0 ? matrix.squared_error / weight : 0});
    }
    return result;
}

}  // namespace quadrille
