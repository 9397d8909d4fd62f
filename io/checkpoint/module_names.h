// SPDX-License-Identifier: Apache-2.0
// The one home of tensor names in checkpoints: MODULE.SUFFIX, MODULE.rank3.SUFFIX where a pack
// splits matrices for its ranks, a bare MODULE, prefixes of whole models, fused modules. A new
// naming style is a change of this file and its .cpp. Names of layers' modules are at their layers.
#pragma once

#include "io/checkpoint/safetensors.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace quadrille {

// What a tensor is to its module, by the suffix of its name.
enum class TensorPart : uint8_t {
    bare,  // no suffix: the tensor is named as its module
    weight,
    bias,
    weight_scale_inv,  // of an FP8 weight
    trellis,
    suh,
    svh,
    su,  // packed signs in place of suh
    sv,
    mcg,  // codebook markers
    mul1,
    scale  // a relic beside a trellis, to be ignored
};

// "trellis" of TensorPart::trellis; "" of bare.
const char* suffix(TensorPart part);
// True where a tensor's elements are weights of the module, not scales, signs or markers of them.
bool holds_weights(TensorPart part);

struct TensorName {
    std::string module;  // prefix of the model included
    int32_t rank = -1;   // 3 of MODULE.rank3.trellis; -1: not split
    TensorPart part = TensorPart::bare;
};
// Never fails: a name without a known suffix is bare.
TensorName parse_tensor_name(const std::string& name);
std::string tensor_name(const std::string& module, TensorPart part, int32_t rank = -1);

// Packs with rank{r} parts are made for this many ranks.
inline constexpr int32_t kSplitRanks = 4;

// How the matrix of a module is stored; never taken from a config.
enum class StoredAs : uint8_t { absent, bare, weight, exl3, exl3_split };
// Error{input} naming the module when it is stored more than once.
StoredAs stored_as(const Checkpoint& checkpoint, const std::string& module);

// Prefix of the text model's tensors, told by its embedding: "model.language_model." officially,
// "model." or "" in text-only repacks. nullopt: no embedding, as in a drafter.
std::optional<std::string> find_text_prefix(const Checkpoint& checkpoint);
// The same where there must be one. Error{input} naming the embedding's tensor.
std::string text_prefix(const Checkpoint& checkpoint);

bool is_vision(const std::string& name);
// Number of the part behind "layers", or -1.
int64_t layer_of(const std::string& name);

// Modules whose matrices some packs store as one, rows of the parts one below the other.
struct FusedNames {
    const char* whole;
    std::array<const char*, 3> parts;
};
inline constexpr FusedNames kQkvNames = {"qkv_proj", {"q_proj", "k_proj", "v_proj"}};
inline constexpr FusedNames kConvNames = {"conv1d", {"q_conv1d", "k_conv1d", "v_conv1d"}};
// Full names of the modules to read below `prefix`: the whole if `has` it, else the three parts.
std::vector<std::string> stored_modules(const FusedNames& names, const std::string& prefix,
                                        const std::function<bool(const std::string&)>& has);

}  // namespace quadrille
