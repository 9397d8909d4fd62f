// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/gpu_bench.h"

namespace quadrille::cuda {

GpuBench::GpuBench() : backend_(0) {
    std::mt19937 random(1);
    pattern_.resize(static_cast<size_t>(kPattern));
    for (size_t i = 0; i < pattern_.size(); i += 4) {
        const auto bits = static_cast<uint32_t>(random());
        std::copy_n(reinterpret_cast<const unsigned char*>(&bits), 4, pattern_.data() + i);
    }
    normals_.resize(size_t{1} << 20);
    std::normal_distribution<float> normal;
    for (float& value : normals_) value = normal(random);
}

Buffer GpuBench::random_bytes(int64_t bytes) {
    Buffer buffer(backend_, bytes);
    for (int64_t at = 0; at < bytes; at += kPattern) {
        backend_.upload(static_cast<unsigned char*>(buffer.data()) + at, pattern_.data(),
                        std::min(kPattern, bytes - at));
    }
    return buffer;
}
Buffer GpuBench::random_values(int64_t count, Dtype dtype, float scale) {
    const int64_t period = std::ssize(normals_);
    std::vector<unsigned char> host(static_cast<size_t>(std::min(count, period) * size_of(dtype)));
    for (int64_t i = 0; i < std::min(count, period); ++i) {
        const float value = normals_[static_cast<size_t>(i)] * scale;
        const uint16_t half = dtype == Dtype::bf16 ? to_bf16(value).bits : to_f16(value).bits;
        const void* from = dtype == Dtype::f32 ? static_cast<const void*>(&value) : &half;
        std::copy_n(static_cast<const unsigned char*>(from), size_of(dtype),
                    host.data() + i * size_of(dtype));
    }
    Buffer buffer(backend_, count * size_of(dtype));
    const int64_t bytes = std::ssize(host);
    for (int64_t at = 0; at < buffer.bytes(); at += bytes) {
        backend_.upload(static_cast<unsigned char*>(buffer.data()) + at, host.data(),
                        std::min(bytes, buffer.bytes() - at));
    }
    backend_.synchronize();
    return buffer;
}
View<float> GpuBench::values(int64_t rows, int64_t cols) {
    buffers_.push_back(random_values(rows * cols, Dtype::f32, 1.0f));
    return {static_cast<float*>(buffers_.back().data()), rows, cols};
}

double GpuBench::time(int64_t calls, const std::function<void(int64_t)>& call) {
    call(0);  // scratch grows here
    call(0);  // and becomes one block
    backend_.synchronize();
    const Graph graph = Graph::record(backend_.stream(), [&] {
        for (int64_t i = 0; i < calls; ++i) call(i);
    });
    Event start;
    Event end;
    std::vector<float> times;
    for (int i = 0; i < 12; ++i) {
        start.record(backend_.stream());
        graph.launch(backend_.stream());
        end.record(backend_.stream());
        end.synchronize();
        if (i >= 2) times.push_back(end.since(start));
    }
    std::nth_element(times.begin(), times.begin() + 5, times.end());
    return static_cast<double>(times[5]) * 1e3 / static_cast<double>(calls);
}
void GpuBench::row(const char* bench, const std::string& shape, double value, const char* unit,
                   double fraction) {
    fmt::print("{}\t{}\t{:.3f}\t{}\t{:.3f}\n", bench, shape, value, unit, fraction);
    std::fflush(stdout);
}
double GpuBench::floor(double bytes, double weights, int32_t bits, bool mul1) {
    const double decode = bits > 0 ? weights / rate(bits, mul1) : 0.0;
    return std::max(bytes / read(), decode);
}
double GpuBench::rate(int32_t bits, bool mul1) {
    double& known = rates_[{bits, mul1}];
    if (known == 0.0) known = decode_rate(bits, mul1, backend_.processors(), backend_.stream());
    return known;
}
double GpuBench::read() {
    if (read_ == 0.0) {
        read_ = read_rate(int64_t{4} << 30, backend_.processors(), backend_.stream());
    }
    return read_;
}

Matrix GpuBench::exl3_matrix(int64_t n, int64_t k, int32_t bits, Codebook codebook,
                             int32_t segments) {
    Matrix w;
    w.n = w.n_padded = n;
    w.k = w.k_padded = k;
    w.bits = bits;
    w.codebook = codebook;
    w.segments = segments;
    for (int32_t s = 0; s <= segments; ++s) w.segment[static_cast<size_t>(s)] = k * s / segments;
    buffers_.push_back(random_bytes(n * k * bits / 8));
    w.trellis = static_cast<const uint16_t*>(buffers_.back().data());
    buffers_.push_back(random_values(k, Dtype::f16, 0.02f));
    w.suh = static_cast<const F16*>(buffers_.back().data());
    buffers_.push_back(random_values(n, Dtype::f16, 1.0f));
    w.svh = static_cast<const F16*>(buffers_.back().data());
    return w;
}

Matrix GpuBench::native_matrix(int64_t n, int64_t k, Dtype dtype) {
    Matrix w;
    w.n = n;
    w.k = k;
    w.dtype = dtype;
    buffers_.push_back(random_values(n * k, dtype, 0.02f));
    w.weights = buffers_.back().data();
    return w;
}

}  // namespace quadrille::cuda
