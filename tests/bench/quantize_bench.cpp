// SPDX-License-Identifier: Apache-2.0
// Speed and errors of the quantizer, as rows for docs/results.tsv behind date and commit: hardware,
// bench, shape, value, unit.
//   quantize_bench tiles ENCODER THREADS TILES     tiles/s of the search, 1 to 8 bits
//   quantize_bench square ENCODER THREADS          seconds for 1024 x 1024 at 2, 3, 4 bits
//   quantize_bench experts ENCODER THREADS COUNT   COUNT matrices 2048 x 4096 that share inputs, 2
//   bits quantize_bench anchor ENCODER THREADS SEEDS [BITS [CODEBOOK]]   errors drawn as the
//   reference's
#include "kernels/trellis_encoder.h"
#include "tests/support/quantize_case.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>

namespace quadrille::test {
namespace {

constexpr std::array kCodebooks = {Codebook::three_inst, Codebook::mcg, Codebook::mul1};

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Processor time of all threads: what else runs on the machine costs little of it.
double processor_seconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Bench {
    std::unique_ptr<TrellisEncoder> encoder;
    int32_t threads = 1;

    void row(const std::string& shape, double value, const char* unit) const {
        fmt::print("{}, {} threads\tquantize\t{}\t{:.6g}\t{}\n", encoder->name(), threads, shape,
                   value, unit);
        std::fflush(stdout);
    }

    void tiles(int64_t count) const {
        Random random(1);
        const std::vector<float> values = random.normals(count * 256, 1.2f);
        std::vector<uint16_t> states(values.size());
        for (int bits = 1; bits <= 8; ++bits) {
            const TrellisCode code{bits, Codebook::mcg};
            encoder->encode_tiles(states.data(), values.data(), std::min<int64_t>(count, 8), code);
            const double start = seconds();
            const double busy = processor_seconds();
            encoder->encode_tiles(states.data(), values.data(), count, code);
            row(fmt::format("tiles {} bits mcg", bits),
                static_cast<double>(count) / (seconds() - start), "tiles/s");
            row(fmt::format("tiles {} bits mcg, a core's time", bits),
                static_cast<double>(count) / (processor_seconds() - busy), "tiles/s");
        }
    }

    void square() const {
        const QuantizeCase made = anchor_case(1, 1024, 1024);
        for (const int32_t sweeps : {0, 1}) {
            for (const int bits : {2, 2, 3, 4}) {  // the first is a warm-up
                const double start = seconds();
                quantize_case(*encoder, made,
                              {.code = {bits, Codebook::mcg}, .sweeps = sweeps, .threads = threads},
                              1);
                row(fmt::format("1024x1024 {} bits mcg, {} sweeps, with its Hessian", bits, sweeps),
                    seconds() - start, "s");
            }
        }
    }

    void experts(int64_t count, int64_t rounds) const {
        constexpr int64_t kInputs = 4096;
        constexpr int64_t kOutputs = 2048;
        Random random(2);
        QuantizeCase made{.n = kOutputs, .k = kInputs};
        made.weights = random.normals(kOutputs * kInputs, 0.02f);
        made.hessian.assign(kInputs * kInputs, 0.0f);
        for (int64_t i = 0; i < kInputs; ++i) {  // decaying correlation of near inputs
            for (int64_t j = std::max<int64_t>(0, i - 40); j <= std::min(kInputs - 1, i + 40);
                 ++j) {
                made.hessian[static_cast<size_t>(i * kInputs + j)] =
                    std::exp2(-static_cast<float>(std::abs(i - j)));
            }
        }
        double start = seconds();
        const InputFactor factor =
            factor_inputs("inputs", made.hessian_view(), {.seed = 1, .threads = threads});
        row("factor of 4096 inputs", seconds() - start, "s");
        std::vector<MatrixToQuantize> matrices;
        for (int64_t i = 0; i < count; ++i) {
            matrices.push_back({"expert", made.weights_view(), &factor, static_cast<uint64_t>(i)});
        }
        for (const int32_t sweeps : {0, 1}) {
            const QuantizeOptions options{
                .code = {2, Codebook::mcg}, .sweeps = sweeps, .threads = threads};
            start = seconds();
            const auto results = quantize_matrices(*encoder, matrices, options);
            const auto shape =
                fmt::format("{} experts 2048x4096 2 bits mcg, {} sweeps, proxy error {:.5f}", count,
                            sweeps, results.front().proxy_error);
            row(shape + ", each", (seconds() - start) / static_cast<double>(count), "s");
            if (rounds == 0) continue;
            start = seconds();
            std::atomic<int64_t> next = 0;
            const auto call = [&] {
                const auto own = make_trellis_encoder(encoder->name(), threads);
                while (next++ < rounds) quantize_matrices(*own, matrices, options);
            };
            {
                const std::jthread other(call);
                call();
            }
            row(fmt::format("{}, {} batches, two callers, each", shape, rounds),
                (seconds() - start) / static_cast<double>(count * rounds), "s");
        }
    }

    void anchor(int seeds, int only_bits, const std::string& only_codebook, int64_t outputs) const {
        std::vector<QuantizeCase> made;
        for (int seed = 0; seed < seeds; ++seed) {
            made.push_back(anchor_case(static_cast<uint64_t>(seed) + 100, outputs, 1024));
        }
        for (int bits = 1; bits <= 8; ++bits) {
            for (const Codebook codebook : kCodebooks) {
                if (only_bits != 0 && bits != only_bits) continue;
                if (!only_codebook.empty() && only_codebook != name(codebook)) continue;
                double sum = 0;
                for (int seed = 0; seed < seeds; ++seed) {
                    sum += quantize_case(*encoder, made[static_cast<size_t>(seed)],
                                         {.code = {bits, codebook}, .threads = threads},
                                         static_cast<uint64_t>(seed))
                               .proxy_error;
                }
                row(fmt::format("{}x1024 {} bits {}, proxy error, mean of {}", outputs, bits,
                                name(codebook), seeds),
                    sum / seeds, "");
            }
        }
    }
};

int run(const std::vector<std::string>& args) {
    if (args.size() < 3 || (args[0] != "square" && args.size() < 4)) {
        fmt::print(stderr, "usage: see the head of tests/bench/quantize_bench.cpp\n");
        return 2;
    }
    const int32_t threads = std::atoi(args[2].c_str());
    const Bench bench{make_trellis_encoder(args[1], threads), threads};
    if (args[0] == "square") bench.square();
    if (args[0] == "tiles") bench.tiles(std::atoll(args[3].c_str()));
    if (args[0] == "experts") {
        bench.experts(std::atoll(args[3].c_str()),
                      args.size() > 4 ? std::atoll(args[4].c_str()) : 0);
    }
    if (args[0] == "anchor") {
        const auto number = [&](size_t at, int64_t otherwise) {
            return args.size() > at ? std::atoll(args[at].c_str()) : otherwise;
        };
        bench.anchor(std::atoi(args[3].c_str()), static_cast<int>(number(5, 0)),
                     args.size() > 6 ? args[6] : "", number(4, 1024));
    }
    return 0;
}

}  // namespace
}  // namespace quadrille::test

int main(int argc, char** argv) {
    return quadrille::test::run({argv + 1, argv + argc});
}
