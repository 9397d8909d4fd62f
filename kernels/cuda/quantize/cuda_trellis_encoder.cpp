// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/quantize/cuda_trellis_encoder.h"

#include "kernels/exl3.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace quadrille::cuda {

namespace {

using exl3::kTile;
using exl3::kTileSize;

// Makes `device` the thread's; before any member of an encoder is made.
int32_t processors_of(int32_t device) {
    int count = 0;
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found != cudaSuccess || device < 0 || device >= count) {
        throw Error(ErrorKind::device, fmt::format("encoder 'cuda': GPU {} of {} that are usable",
                                                   device, found == cudaSuccess ? count : 0));
    }
    CUDA_CHECK(cudaSetDevice(device));
    int processors = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    return processors;
}

template <class T>
DeviceBuffer uploaded(const T* values, int64_t count, const Stream& stream) {
    const auto bytes = count * static_cast<int64_t>(sizeof(T));
    DeviceBuffer buffer(bytes);
    CUDA_CHECK(cudaMemcpyAsync(buffer.data(), values, static_cast<size_t>(bytes),
                               cudaMemcpyHostToDevice, stream.get()));
    return buffer;
}

template <class T>
void download(T* values, const DeviceBuffer& buffer, const Stream& stream) {
    CUDA_CHECK(cudaMemcpyAsync(values, buffer.data(), static_cast<size_t>(buffer.bytes()),
                               cudaMemcpyDeviceToHost, stream.get()));
}

// A Hessian in device memory.
class DeviceHessian {
  public:
    DeviceHessian(const TrellisHessian& host, int64_t k, bool sweeps, const Stream& stream)
        : feedback_(uploaded(host.feedback, k * k, stream)),
          metric_(uploaded(host.metric, k * kTile, stream)) {
        if (!sweeps) return;
        sweep_feedback_ = uploaded(host.sweep_feedback, k * k, stream);
        sweep_metric_ = uploaded(host.sweep_metric, k * kTile, stream);
    }
    TrellisHessian get() const {
        const auto floats = [](const DeviceBuffer& buffer) {
            return static_cast<const float*>(buffer.data());
        };
        return {floats(feedback_), floats(metric_), floats(sweep_feedback_), floats(sweep_metric_)};
    }

  private:
    DeviceBuffer feedback_, metric_, sweep_feedback_, sweep_metric_;
};

// A matrix in device memory.
struct DeviceMatrix {
    DeviceBuffer weights, errors, states, error, energy;

    DeviceMatrix(const TrellisMatrix& host, const Stream& stream)
        : weights(uploaded(host.weights, host.k * host.n, stream)),
          errors(host.k * host.n * 4),
          states(host.k * host.n * 2),
          error(host.n / kTile * (host.k / kTile) * 8),
          energy(error.bytes()) {}

    ColumnGroup group(int64_t first, const TrellisMatrix& host,
                      const TrellisHessian* hessian) const {
        const int64_t tile = first / kTile;
        const int64_t blocks = host.k / kTile;
        return {.weights = static_cast<const float*>(weights.data()) + first,
                .errors = static_cast<float*>(errors.data()) + first,
                .states = static_cast<uint16_t*>(states.data()) + tile * kTileSize,
                .error = static_cast<double*>(error.data()) + tile * blocks,
                .energy = static_cast<double*>(energy.data()) + tile * blocks,
                .n = host.n,
                .has_hessian = hessian != nullptr,
                .hessian = hessian == nullptr ? TrellisHessian{} : *hessian};
    }
};

// Sums of a tile's row blocks, ascending.
void sum_blocks(double* out, const DeviceBuffer& parts, int64_t tiles, const Stream& stream) {
    std::vector<double> values(static_cast<size_t>(parts.bytes() / 8));
    download(values.data(), parts, stream);
    stream.synchronize();
    const int64_t blocks = std::ssize(values) / tiles;
    for (int64_t tile = 0; tile < tiles; ++tile) {
        double sum = 0;
        for (int64_t i = 0; i < blocks; ++i) sum += values[static_cast<size_t>(tile * blocks + i)];
        out[tile] = sum;
    }
}

// Device bytes of a matrix, its Hessian left out.
int64_t bytes_of(const TrellisMatrix& matrix) {
    return matrix.k * matrix.n * 11;
}

}  // namespace

CudaTrellisEncoder::CudaTrellisEncoder(int32_t device)
    : device_(device),
      processors_(processors_of(device)),
      table_(65536 * 2),
      choices_(processors_ * kChoiceWords * 4) {}

TrellisScratch CudaTrellisEncoder::scratch() const {
    return {.table = static_cast<const F16*>(table_.data()),
            .choices = static_cast<uint32_t*>(choices_.data()),
            .blocks = processors_};
}

void CudaTrellisEncoder::set_code(TrellisCode code) {
    require(code.bits >= 1 && code.bits <= 8, "codes have 1 to 8 bits");
    CUDA_CHECK(cudaSetDevice(device_));
    std::vector<F16> table;
    for (uint32_t state = 0; state < 65536; ++state) {
        table.push_back(exl3::decode(code.codebook, state));
    }
    CUDA_CHECK(cudaMemcpyAsync(table_.data(), table.data(), table.size() * sizeof(F16),
                               cudaMemcpyHostToDevice, stream_.get()));
    stream_.synchronize();
}

void CudaTrellisEncoder::encode_tiles(uint16_t* states, const float* tiles, int64_t count,
                                      TrellisCode code) {
    set_code(code);
    constexpr int64_t kAtOnce = 1 << 18;  // 400 MB
    for (int64_t first = 0; first < count; first += kAtOnce) {
        const int64_t some = std::min(kAtOnce, count - first);
        const DeviceBuffer values = uploaded(tiles + first * kTileSize, some * kTileSize, stream_);
        const DeviceBuffer found(some * kTileSize * 2);
        viterbi(static_cast<uint16_t*>(found.data()), static_cast<const float*>(values.data()),
                some, code.bits, false, scratch(), stream_.get());
        download(states + first * kTileSize, found, stream_);
        stream_.synchronize();
    }
}

void CudaTrellisEncoder::encode_matrices(std::span<const TrellisMatrix> matrices, TrellisCode code,
                                         int32_t sweeps) {
    set_code(code);
    size_t free = 0;
    size_t total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    const int64_t most = static_cast<int64_t>(free) / 10 * 9;
    size_t first = 0;
    while (first < matrices.size()) {
        size_t end = first;
        int64_t bytes = 0;
        std::set<const float*> hessians;
        for (; end < matrices.size(); ++end) {
            const TrellisMatrix& matrix = matrices[end];
            require(matrix.k == matrices[first].k, "matrices encoded together have one k");
            require(matrix.n % kGroupColumns == 0, "a GPU encodes whole blocks of columns");
            bytes += bytes_of(matrix);
            if (matrix.hessian != nullptr && hessians.insert(matrix.hessian->feedback).second) {
                bytes += matrix.k * matrix.k * (sweeps > 0 ? 8 : 4);
            }
            if (end > first && bytes > most) break;
        }
        encode_together(matrices.subspan(first, end - first), code.bits, sweeps);
        first = end;
    }
}

void CudaTrellisEncoder::encode_together(std::span<const TrellisMatrix> matrices, int bits,
                                         int32_t sweeps) {
    std::map<const float*, DeviceHessian> hessians;  // by their host memory
    std::vector<DeviceMatrix> on_device;
    std::vector<ColumnGroup> groups;
    bool feeds_back = false;
    const int64_t k = matrices.front().k;
    for (const TrellisMatrix& matrix : matrices) {
        on_device.emplace_back(matrix, stream_);
        TrellisHessian hessian;
        if (matrix.hessian != nullptr) {
            feeds_back = true;
            auto at = hessians.find(matrix.hessian->feedback);
            if (at == hessians.end()) {
                at = hessians
                         .emplace(matrix.hessian->feedback,
                                  DeviceHessian(*matrix.hessian, k, sweeps > 0, stream_))
                         .first;
            }
            hessian = at->second.get();
        }
        for (int64_t n = 0; n < matrix.n; n += kGroupColumns) {
            groups.push_back(
                on_device.back().group(n, matrix, matrix.hessian == nullptr ? nullptr : &hessian));
        }
    }
    const DeviceBuffer table = uploaded(groups.data(), std::ssize(groups), stream_);
    const int64_t tiles = std::ssize(groups) * kGroupTiles;
    const DeviceBuffer targets(tiles * kTileSize * 4);
    const DeviceBuffer states(tiles * kTileSize * 2);
    RowBlock rows{.groups = static_cast<const ColumnGroup*>(table.data()),
                  .group_count = static_cast<int32_t>(groups.size()),
                  .k = k,
                  .tiles = static_cast<float*>(targets.data()),
                  .states = static_cast<uint16_t*>(states.data())};
    for (int32_t pass = 0; pass <= (feeds_back ? sweeps : 0); ++pass) {
        rows.sweep = pass > 0;
        for (rows.block = k / kTile - 1; rows.block >= 0; --rows.block) {
            gather_targets(rows, stream_.get());
            viterbi(rows.states, rows.tiles, tiles, bits, rows.sweep, scratch(), stream_.get());
            keep_states(rows, scratch().table, stream_.get());
        }
    }
    measure(rows.groups, rows.group_count, k, stream_.get());
    for (size_t i = 0; i < matrices.size(); ++i) {
        const TrellisMatrix& matrix = matrices[i];
        download(matrix.states, on_device[i].states, stream_);
        sum_blocks(matrix.error, on_device[i].error, matrix.n / kTile, stream_);
        sum_blocks(matrix.energy, on_device[i].energy, matrix.n / kTile, stream_);
    }
}

}  // namespace quadrille::cuda
