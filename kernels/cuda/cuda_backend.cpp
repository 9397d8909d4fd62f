// SPDX-License-Identifier: Apache-2.0
// Memory of the CUDA backend, and the ops that are one launcher.
#include "kernels/cuda/cuda_backend.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sequence_launch.h"

#include <fmt/format.h>

#include <cstring>
#include <fstream>

namespace quadrille::cuda {

namespace {

constexpr int kLowestMajor = 8;  // mma.sync with fp16, bf16 and tf32; cp.async

}  // namespace

int32_t device_count() {
    int count = 0;  // left as it is on errors
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return 0;
    }
    return count;
}

namespace {

// Makes `device` current before any other member is built on it.
std::string use_device(int32_t device) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        static_cast<void>(cudaGetLastError());
        throw Error(
            ErrorKind::device,
            fmt::format("no usable GPU: {}",
                        error == cudaSuccess ? "no device is visible" : cudaGetErrorString(error)));
    }
    if (device < 0 || device >= count) {
        throw Error(ErrorKind::device,
                    fmt::format("GPU {} does not exist: {} visible", device, count));
    }
    CUDA_CHECK(cudaSetDevice(device));
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    if (properties.major < kLowestMajor) {
        throw Error(ErrorKind::device,
                    fmt::format("GPU {} ({}, sm_{}{}) is too old: sm_80 or newer", device,
                                properties.name, properties.major, properties.minor));
    }
    return properties.name;
}

}  // namespace

CudaBackend::CudaBackend(int32_t device) : device_name_(use_device(device)) {
    check_image();
}

// "CUDA 13.0" of the runtime, of the driver's interface, and the driver's own version where the
// system tells it.
std::vector<std::string> CudaBackend::libraries() const {
    int runtime = 0;
    int driver = 0;
    CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    const auto text = [](int version) {
        return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
    };
    std::vector<std::string> found = {fmt::format("CUDA runtime {}", text(runtime)),
                                      fmt::format("CUDA driver {}", text(driver))};
    std::ifstream file("/sys/module/nvidia/version");
    std::string version;
    if (file >> version) found.push_back(fmt::format("NVIDIA driver {}", version));
    return found;
}

void* CudaBackend::allocate(int64_t bytes) {
    if (bytes == 0) return nullptr;
    DeviceBuffer buffer(bytes);
    void* pointer = buffer.data();
    CUDA_CHECK(cudaMemsetAsync(pointer, 0, static_cast<size_t>(bytes), stream_.get()));
    memory_.emplace(pointer, std::move(buffer));
    return pointer;
}

void CudaBackend::release(void* pointer) noexcept {
    memory_.erase(pointer);
}

void* CudaBackend::allocate_host(int64_t bytes) {
    if (bytes == 0) return nullptr;
    PinnedBuffer buffer(bytes);
    void* pointer = buffer.data();
    std::memset(pointer, 0, static_cast<size_t>(bytes));
    host_memory_.emplace(pointer, std::move(buffer));
    return pointer;
}

void CudaBackend::release_host(void* pointer) noexcept {
    host_memory_.erase(pointer);
}

void CudaBackend::upload(void* to, const void* host, int64_t bytes) {
    if (bytes <= 0) return;
    CUDA_CHECK(cudaMemcpyAsync(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                               stream_.get()));
}

void CudaBackend::download(void* host, const void* from, int64_t bytes) {
    if (bytes <= 0) return;
    CUDA_CHECK(cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                               stream_.get()));
    stream_.synchronize();
}

void CudaBackend::fetch(void* host, const void* from, int64_t bytes) {
    if (bytes <= 0) return;
    CUDA_CHECK(cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                               stream_.get()));
}

namespace {

class GraphRecording final : public Recording {
  public:
    GraphRecording(Graph graph, const Stream& stream) : graph_(std::move(graph)), stream_(stream) {}
    void replay() override { graph_.launch(stream_); }

  private:
    Graph graph_;
    const Stream& stream_;
};

}  // namespace

std::unique_ptr<Recording> CudaBackend::record(const std::function<void()>& work) {
    workspace_.keep();
    return std::make_unique<GraphRecording>(Graph::record(stream_, work), stream_);
}

void CudaBackend::copy(void* to, const void* from, int64_t bytes) {
    if (bytes <= 0) return;
    CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                               stream_.get()));
}

void CudaBackend::fill_zero(void* to, int64_t bytes) {
    if (bytes <= 0) return;
    CUDA_CHECK(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream_.get()));
}

void CudaBackend::embed(View<float> out, const int32_t* tokens, const Matrix& table,
                        int32_t copies) {
    cuda::embed(out, tokens, table, copies, stream_.get());
}
void CudaBackend::rms_norm(View<float> out, View<const float> in, const float* weight, float eps) {
    cuda::rms_norm(out, in, weight, eps, stream_.get());
}
void CudaBackend::layer_norm(View<float> out, View<const float> in, const float* weight,
                             const float* bias, float eps) {
    cuda::layer_norm(out, in, weight, bias, eps, stream_.get());
}
void CudaBackend::swiglu(View<float> out, View<const float> gate, View<const float> up,
                         float limit) {
    cuda::swiglu(out, gate, up, limit, stream_.get());
}
void CudaBackend::add(View<float> out, View<const float> in) {
    cuda::add(out, in, stream_.get());
}
void CudaBackend::tree_sum(View<float> out, const float* parts, int32_t count,
                           int64_t part_stride) {
    cuda::tree_sum(out, parts, count, part_stride, nullptr, stream_.get());
}
void CudaBackend::copy_rows(View<float> out, View<const float> in, const int32_t* index) {
    cuda::copy_rows(out, in, index, stream_.get());
}

void CudaBackend::hyper_weights(View<float> pre, View<float> post, View<float> mix,
                                View<const float> streams, const Matrix& fn, const float* base,
                                const float* scale, const HyperParams& params) {
    Workspace::Scope scope(workspace_);
    const HyperNeed need = hyper_need(streams.rows, fn);
    cuda::hyper_weights(pre, post, mix, streams, fn, base, scale, params,
                        scope.take<float>(need.partial), workspace_.counters(need.counters),
                        stream_.get());
}
void CudaBackend::hyper_in(View<float> out, View<const float> streams, View<const float> pre) {
    cuda::hyper_in(out, streams, pre, stream_.get());
}
void CudaBackend::hyper_out(View<float> streams, View<const float> y, View<const float> post,
                            View<const float> mix) {
    cuda::hyper_out(streams, y, post, mix, stream_.get());
}
void CudaBackend::stream_mean(View<float> out, View<const float> streams, int32_t streams_count) {
    cuda::stream_mean(out, streams, streams_count, stream_.get());
}

void CudaBackend::kda(View<float> out, View<const float> qkv, View<const float> f,
                      View<const float> b, View<const float> g, const KdaWeights& weights,
                      const KdaState& state, const KdaParams& params, const Rows& rows) {
    cuda::kda(out, qkv, f, b, g, weights, state, params, rows, kernels_, stream_.get());
}
void CudaBackend::kda_flush(const KdaWeights& weights, const KdaState& state,
                            const KdaParams& params, int32_t slot, int32_t pending, bool fresh) {
    cuda::kda_flush(weights, state, params, slot, pending, fresh, kernels_, stream_.get());
}

void CudaBackend::latent_append(View<float> latents, View<const float> latent, const Rows& rows) {
    cuda::latent_append(latents, latent, rows, stream_.get());
}
void CudaBackend::index_pool(const IndexCache& cache, View<const float> key, View<const float> gate,
                             const float* ape, const IndexParams& params, const Rows& rows) {
    cuda::index_pool(cache, key, gate, ape, params, rows, stream_.get());
}
void CudaBackend::index_select(View<int32_t> selected, int32_t* count, View<const float> query,
                               View<const float> weight, const IndexCache& cache,
                               const IndexParams& params, const Rows& rows) {
    Workspace::Scope scope(workspace_);
    cuda::index_select(selected, count, query, weight, cache, params, rows,
                       scope.take<uint32_t>(index_keys(rows.m, cache, params)), kernels_,
                       stream_.get());
}
void CudaBackend::mla_attention(View<float> out, View<const float> query, const Matrix& kv_b,
                                View<const float> latents, View<const int32_t> selected,
                                const int32_t* count, const MlaParams& params, const Rows& rows) {
    Workspace::Scope scope(workspace_);
    cuda::mla_attention(out, query, kv_b, latents, selected, count, params, rows,
                        scope.take<float>(mla_scratch(rows.m, selected.cols, params)), kernels_,
                        stream_.get());
}

void CudaBackend::route(View<int32_t> ids, View<float> weights, View<const float> logits,
                        const float* bias, float scale, const Rows& rows) {
    cuda::route(ids, weights, logits, bias, scale, rows, stream_.get());
}
void CudaBackend::argmax(float* value, int32_t* id, View<const float> logits, int32_t first_id,
                         int32_t valid) {
    top_k({value, logits.rows, 1}, {id, logits.rows, 1}, logits, first_id, valid);
}
void CudaBackend::top_k(View<float> values, View<int32_t> ids, View<const float> logits,
                        int32_t first_id, int32_t valid) {
    Workspace::Scope scope(workspace_);
    void* scratch = scope.take<unsigned char>(top_k_scratch(values.rows, values.cols, valid));
    cuda::top_k(values, ids, logits, first_id, valid, scratch, stream_.get());
}

void CudaBackend::merge_top_k(View<float> values, View<int32_t> ids, const float* part_values,
                              const int32_t* part_ids, int32_t count, int64_t part_stride) {
    cuda::merge_top_k(values, ids, part_values, part_ids, count, part_stride, stream_.get());
}

void CudaBackend::block_tokens(int32_t* tokens, const int32_t* anchor, View<const int32_t> path,
                               const Rows& rows) {
    cuda::block_tokens(tokens, anchor, path, rows, stream_.get());
}
void CudaBackend::mark_accepted(uint8_t* write, const int32_t* tokens, const int32_t* target,
                                const Rows& rows) {
    cuda::mark_accepted(write, tokens, target, rows, stream_.get());
}
void CudaBackend::merge_samples(int32_t* id, const double* scores, const int32_t* ids, int32_t m,
                                int32_t count, int64_t part_bytes) {
    cuda::merge_samples(id, scores, ids, m, count, part_bytes, stream_.get());
}

void CudaBackend::draft_append(const DraftCache& cache, View<const float> key,
                               View<const float> value, const float* k_norm, const uint8_t* write,
                               const DraftAttentionParams& params, const Rows& rows) {
    cuda::draft_append(cache, key, value, k_norm, write, params, rows, stream_.get());
}
void CudaBackend::draft_attention(View<float> out, View<const float> query, View<const float> key,
                                  View<const float> value, const float* q_norm, const float* k_norm,
                                  const DraftCache& cache, const DraftAttentionParams& params,
                                  const Rows& rows) {
    Workspace::Scope scope(workspace_);
    float* scratch = scope.take<float>(draft_attention_scratch(cache, params, rows.sequences));
    cuda::draft_attention(out, query, key, value, q_norm, k_norm, cache, params, rows, scratch,
                          kernels_, stream_.get());
}
void CudaBackend::draft_conv(View<float> out, View<const float> in, View<const float> dynamic,
                             const float* base, int32_t taps, int32_t group, int32_t block) {
    cuda::draft_conv(out, in, dynamic, base, taps, group, block, stream_.get());
}
void CudaBackend::walk_path(View<int32_t> path, View<float> scores, View<const float> values,
                            View<const int32_t> ids, View<const float> projected,
                            const Matrix& predecessor, const Matrix& successor,
                            const int32_t* anchor, const SampleRow* draws) {
    cuda::walk_path(path, scores, values, ids, projected, predecessor, successor, anchor, draws,
                    stream_.get());
}

void CudaBackend::mark_seen(View<uint32_t> seen, const int32_t* slots, const int32_t* tokens,
                            int32_t count) {
    cuda::mark_seen(seen, slots, tokens, count, stream_.get());
}
void CudaBackend::sample(double* score, int32_t* id, float* logit, View<const float> logits,
                         const SampleRow* rows, int32_t count, View<const int32_t> excluded,
                         int32_t first_id, int32_t valid) {
    cuda::sample(score, id, logit, logits, rows, count, excluded, first_id, valid, stream_.get());
}
void CudaBackend::sample_candidates(View<float> values, View<float> raw, View<int32_t> ids,
                                    View<const float> logits, const SampleRow* rows, int32_t count,
                                    int32_t first_id, int32_t valid) {
    require(values.rows >= count && raw.rows >= count && ids.rows >= count &&
                values.cols == ids.cols && raw.cols == ids.cols && ids.cols > 0,
            "sample_candidates: values, raw and ids are (count, k)");
    Workspace::Scope scope(workspace_);
    auto* penalized = scope.take<float>(int64_t{count} * valid);
    cuda::sample_penalized(penalized, logits, rows, count, first_id, valid, stream_.get());
    top_k(values.slice_rows(0, count), ids.slice_rows(0, count), {penalized, count, valid},
          first_id, valid);
    cuda::sample_raw(raw, ids, logits, rows, count, first_id, stream_.get());
}
void CudaBackend::sample_sum(ExpSum* sums, View<const float> logits, const SampleRow* rows,
                             int32_t count, int32_t first_id, int32_t valid) {
    cuda::sample_sum(sums, logits, rows, count, first_id, valid, stream_.get());
}
void CudaBackend::sample_at(View<float> values, View<float> raw, View<const int32_t> ids,
                            View<const float> logits, const SampleRow* rows, int32_t count,
                            int32_t first_id, int32_t valid) {
    cuda::sample_at(values, raw, ids, logits, rows, count, first_id, valid, stream_.get());
}

}  // namespace quadrille::cuda
