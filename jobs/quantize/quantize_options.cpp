// SPDX-License-Identifier: Apache-2.0
#include "jobs/quantize/quantize_options.h"

#include "jobs/options/common_flags.h"
#include "jobs/options/environment.h"
#include "jobs/options/option_checks.h"
#include "runtime/prefill_plan.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>
#include <vector>

namespace quadrille {
namespace {

constexpr int64_t kMostBits = 8;
constexpr int64_t kNativeHead = 16;

// All of `text` as a number from `low` to `high`; -1: it is none.
int64_t number_in(std::string_view text, int64_t low, int64_t high) {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    return whole && value >= low && value <= high ? value : -1;
}

CLI::Option* add_bits(CLI::App& app, const char* name, int64_t& value, const char* help) {
    const CLI::Validator check(
        [name](const std::string& text) -> std::string {
            if (text == "none" || number_in(text, 1, kMostBits) > 0) return {};
            return fmt::format("{}: expected none or 1 to {}, found {}", name, kMostBits, text);
        },
        "BITS");
    return app
        .add_option_function<std::string>(
            name,
            [&value](const std::string& text) {
                value = text == "none" ? 0 : number_in(text, 1, kMostBits);
            },
            help)
        ->check(check)
        ->option_text("none|N");
}

void parse_layer_bits(const std::vector<std::string>& entries, QuantizeJobOptions& options) {
    for (const std::string& entry : entries) {
        const size_t colon = entry.find(':');
        const std::string_view all = entry;
        const int64_t layer = number_in(all.substr(0, colon), 0, kMaxTokens);
        const int64_t bits =
            colon == std::string::npos ? -1 : number_in(all.substr(colon + 1), 1, kMostBits);
        if (layer < 0 || bits < 0) {
            fail_usage(fmt::format("--layer-bits: expected LAYER:BITS with 1 to {} bits, found {}",
                                   kMostBits, entry));
        }
        if (!options.layer_bits.emplace(layer, bits).second) {
            fail_usage(fmt::format("--layer-bits: layer {} is given twice", layer));
        }
    }
}

void add_bit_flags(CLI::App& app, QuantizeJobOptions& options) {
    add_number(app, "--routed-bits", options.routed_bits, 1, kMostBits, "bits of routed experts");
    app.add_option_function<std::vector<std::string>>(
           "--layer-bits",
           [&options](const std::vector<std::string>& entries) {
               parse_layer_bits(entries, options);
           },
           "routed bits of single layers, as 24:3,27:3")
        ->delimiter(',')
        ->option_text("L:N,...");
    add_bits(app, "--dense", options.dense_bits, "bits of attention, shared and dense MLPs [none]");
    add_bits(app, "--attention-bits", options.attention_bits, "bits of attention [--dense]");
    add_bits(app, "--shared-bits", options.shared_bits, "bits of shared experts [--dense]");
    add_bits(app, "--mlp-bits", options.mlp_bits, "bits of dense MLPs [--dense]");
    app.add_option("--head-bits", options.head_bits, "bits of the head, 16: as it is [16]")
        ->check(CLI::Validator(
            [](const std::string& text) -> std::string {
                if (text == "16" || number_in(text, 1, kMostBits) > 0) return {};
                return fmt::format("--head-bits: expected 1 to {} or 16, found {}", kMostBits,
                                   text);
            },
            "BITS"))
        ->option_text("N");
    app.add_option("--bpw", options.bpw, "mean bits, more where the output needs them")
        ->check(CLI::Validator(
            [](const std::string& text) -> std::string {
                double value = 0;
                const auto [end, error] =
                    std::from_chars(text.data(), text.data() + text.size(), value);
                const bool whole = error == std::errc() && end == text.data() + text.size();
                if (whole && value >= 1 && value <= double{kMostBits}) return {};
                return fmt::format("--bpw: expected a number from 1 to {}, found {}", kMostBits,
                                   text);
            },
            "BITS"))
        ->option_text("X");
}

}  // namespace

const char* name(WeightClass kind) {
    constexpr const char* kNames[] = {"routed experts", "attention", "shared experts", "dense MLPs",
                                      "head"};
    return kNames[static_cast<size_t>(kind)];
}

int64_t QuantizeJobOptions::bits(WeightClass kind, int64_t layer) const {
    const auto chosen = chosen_bits.find({layer, kind});
    if (chosen != chosen_bits.end()) return chosen->second;
    const auto own = [&](int64_t given) { return given >= 0 ? given : dense_bits; };
    switch (kind) {
        case WeightClass::routed: {
            const auto found = layer_bits.find(layer);
            return found == layer_bits.end() ? routed_bits : found->second;
        }
        case WeightClass::attention:
            return own(attention_bits);
        case WeightClass::shared:
            return own(shared_bits);
        case WeightClass::mlp:
            return own(mlp_bits);
        case WeightClass::head:
            return head_bits == kNativeHead ? 0 : head_bits;
    }
    return 0;
}

bool QuantizeJobOptions::full() const {
    using enum WeightClass;
    return bits(attention, 0) > 0 || bits(shared, 0) > 0 || bits(mlp, 0) > 0 || bits(head, 0) > 0;
}

void add_flags(CLI::App& app, QuantizeJobOptions& options) {
    add_text(app, "--in", options.target, "a checkpoint folder", "BF16, F16, F32 or FP8 checkpoint",
             "DIR");
    add_text(app, "--out", options.out, "a folder", "pack to write; an unfinished one goes on",
             "DIR");
    add_bit_flags(app, options);
    for (const char* flag :
         {"--layer-bits", "--attention-bits", "--shared-bits", "--mlp-bits", "--head-bits"}) {
        app.get_option(flag)->group("Bits");
    }
    app.add_option_function<std::string>(
           "--codebook",
           [&options](const std::string& text) {
               options.codebook = text == "mcg"    ? Codebook::mcg
                                  : text == "mul1" ? Codebook::mul1
                                                   : Codebook::three_inst;
           },
           "mcg, mul1 or 3inst [mcg]")
        ->check(one_of({"mcg", "mul1", "3inst"}))
        ->option_text("NAME");
    app.add_option("--calibration", options.prompts, "text to calibrate on, as --prompts [none]")
        ->option_text("FILE ...");
    app.add_option("--seed", options.seed, "seed of random signs [0]")
        ->check(unsigned_integer())
        ->option_text("N");
    add_number(app, "--threads", options.threads, 1, 4096,
               "threads of a rank [its share of cores]");
    add_text(app, "--report", options.report, "a file", "errors by tensor, bytes by class, JSON",
             "FILE");
    add_number(app, "--max-batched-tokens", options.max_batched_tokens, kPrefillGrid, kMaxTokens,
               "calibration rows at once [7168]");
    app.add_option("--backend", options.backend, "auto, cpu, cuda, cpu-plain, -avx2, -avx512")
        ->check(one_of({"auto", "cpu", "cuda", "cpu-plain", "cpu-avx2", "cpu-avx512"}))
        ->option_text("NAME");
}

void finish(QuantizeJobOptions& options, const Invocation& invocation) {
    need(!options.target.empty(), "--in", "a checkpoint folder");
    need(!options.out.empty(), "--out", "a folder");
    if (options.bpw > 0) {
        if (options.prompts.empty()) {
            fail_usage("--bpw: expected --calibration, on which it measures, found none");
        }
        if (!options.layer_bits.empty()) {
            fail_usage("--bpw and --layer-bits: expected one of them, both say a layer's bits");
        }
        if (options.routed_bits == 0) options.routed_bits = std::llround(options.bpw);
    }
    need(options.routed_bits > 0, "--routed-bits", "1 to 8");
    options.max_batched_tokens = prefill_floor(options.max_batched_tokens);
    options.tp = 1;  // every rank runs the calibration by itself and quantizes its own matrices
    options.comm = "mpi";
    const std::string locking = value_of(invocation, kLocking);
    if (locking == "FALSE" || locking == "0") options.locking = Locking::off;
    if (locking == "BEST_EFFORT") options.locking = Locking::best_effort;
}

}  // namespace quadrille
