// SPDX-License-Identifier: Apache-2.0
#include "runtime/model/weight_reader.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

namespace quadrille {

namespace {

constexpr int64_t kMostThreads = 8;
constexpr int64_t kSlotsPerThread = 2;  // one is read while the other is copied

int64_t most_threads() {
    return std::clamp<int64_t>(std::thread::hardware_concurrency() / 2, 1, kMostThreads);
}

// Page-locked memory of a backend.
class Pinned {
  public:
    Pinned(Backend& backend, int64_t bytes)
        : backend_(backend), data_(static_cast<std::byte*>(backend.allocate_host(bytes))) {}
    ~Pinned() { backend_.release_host(data_); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    std::byte* data() const { return data_; }

  private:
    Backend& backend_;
    std::byte* data_;
};

// Threads prepare chunks, each in its slot of the ring; this thread, the only one that calls the
// backend, copies them from there in order.
class Ring {
  public:
    Ring(Backend& backend, const Checkpoint& checkpoint, const std::vector<Placed>& pieces,
         const std::vector<Chunk>& chunks)
        : backend_(backend),
          checkpoint_(checkpoint),
          pieces_(pieces),
          chunks_(chunks),
          dense_(pieces.size()),
          ready_(chunks.size(), 0),
          failures_(chunks.size()) {
        for (const Chunk& chunk : chunks) {
            raw_bytes_ = std::max(raw_bytes_, (chunk.bytes + 63) / 64 * 64);
            slot_bytes_ = std::max(slot_bytes_, chunk.moved);
        }
        slot_bytes_ += raw_bytes_;
        const int64_t threads = std::min(most_threads(), std::ssize(chunks));
        slots_ = std::min(threads * kSlotsPerThread, std::ssize(chunks));
        memory_.emplace(backend, slots_ * slot_bytes_);
        start(threads);
    }
    ~Ring() {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        changed_.notify_all();
    }
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    // The chunks in order.
    void copy(Position* position, const std::function<void(const Chunk&)>& placed) {
        std::unique_ptr<Mark> before;
        for (size_t c = 0; c < chunks_.size(); ++c) {
            const Chunk& chunk = chunks_[c];
            if (position != nullptr) {
                position->about(fmt::format("{}: tensor {}", checkpoint_.folder().string(),
                                            pieces_[chunk.first].piece.tensor->name));
            }
            wait_for(c);
            if (!backend_.on_host()) {
                for (size_t i = chunk.first; i < chunk.last; ++i) {
                    const WeightPiece& piece = pieces_[i].piece;
                    const int64_t bytes = placed_bytes(piece);
                    if (bytes > 0) backend_.upload(piece.to, dense_[i], bytes);
                }
                // The device copies this chunk while its slot's neighbour is given free.
                std::unique_ptr<Mark> mark = backend_.mark();
                if (before) before->wait();
                before = std::move(mark);
            }
            give_back(before ? c : c + 1);
            placed(chunk);
        }
        if (before) before->wait();
    }

  private:
    // As many as the system gives, one at least.
    void start(int64_t threads) {
        while (std::ssize(threads_) < threads) {
            try {
                threads_.emplace_back([this] { work(); });
            } catch (const std::system_error& error) {
                if (!threads_.empty()) return;
                throw Error(ErrorKind::io,
                            fmt::format("a thread to read weights: {}", error.what()));
            }
        }
    }

    void wait_for(size_t c) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ready_[c] != 0; });
        if (failures_[c]) std::rethrow_exception(failures_[c]);
    }
    // The slots of the first `chunks` chunks may be used again.
    void give_back(size_t chunks) {
        const std::lock_guard lock(mutex_);
        free_ = chunks;
        changed_.notify_all();
    }

    void work() {
        for (;;) {
            size_t c;
            {
                std::unique_lock lock(mutex_);
                c = next_;
                changed_.wait(lock, [&] {
                    c = next_;
                    return stop_ || c == chunks_.size() || c < free_ + static_cast<size_t>(slots_);
                });
                if (stop_ || c == chunks_.size()) return;
                ++next_;
            }
            try {
                prepare_chunk(c);
            } catch (...) {
                failures_[c] = std::current_exception();
            }
            const std::lock_guard lock(mutex_);
            ready_[c] = 1;
            changed_.notify_all();
        }
    }

    void prepare_chunk(size_t c) {
        const Chunk& chunk = chunks_[c];
        std::byte* const raw = memory_->data() + static_cast<int64_t>(c) % slots_ * slot_bytes_;
        std::byte* out = raw + raw_bytes_;
        read(chunk, {raw, static_cast<size_t>(chunk.bytes)});
        for (size_t i = chunk.first; i < chunk.last; ++i) {
            const auto& [piece, from] = pieces_[i];
            const int64_t placed = placed_bytes(piece);
            dense_[i] = prepare(checkpoint_, piece, raw + from.begin - chunk.from.begin, out);
            if (dense_[i] == out) out += placed;
            if (backend_.on_host() && placed > 0) {
                std::memcpy(piece.to, dense_[i], static_cast<size_t>(placed));
            }
        }
    }

    void read(const Chunk& chunk, std::span<std::byte> raw) const {
        try {
            checkpoint_.read(chunk.from, raw);
        } catch (const Error& error) {
            throw Error(error.kind(),
                        fmt::format("{} (tensor {} and what follows it)", error.what(),
                                    pieces_[chunk.first].piece.tensor->name));
        }
        if (backend_.shares_host_memory() && !backend_.on_host()) {
            checkpoint_.forget(chunk.from, chunk.bytes);
        }
    }

    Backend& backend_;
    const Checkpoint& checkpoint_;
    const std::vector<Placed>& pieces_;
    const std::vector<Chunk>& chunks_;
    int64_t raw_bytes_ = 0;
    int64_t slot_bytes_ = 0;  // what is read, then what is placed from elsewhere
    int64_t slots_ = 0;
    std::optional<Pinned> memory_;
    std::vector<const std::byte*> dense_;  // of each piece
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<char> ready_;
    std::vector<std::exception_ptr> failures_;
    size_t next_ = 0;
    size_t free_ = 0;
    bool stop_ = false;
    std::vector<std::jthread> threads_;  // last: they end before the rest does
};

}  // namespace

void WeightReader::add(const Tensor& tensor, PieceKind kind, const Range& bytes, void* to) {
    add({.tensor = &tensor, .kind = kind, .spans = {bytes}, .to = static_cast<std::byte*>(to)});
}

void WeightReader::add(WeightPiece piece) {
    require(!piece.tensor->made(), "bytes are read of tensors that have them");
    const int64_t bytes = row_bytes(piece);
    if (piece.rows <= 0 || bytes == 0) return;
    // Rows without gaps between them are one.
    if (piece.spans.size() == 1 && (bytes == piece.stride || piece.rows == 1)) {
        piece.spans[0].end = piece.spans[0].begin + piece.rows * bytes;
        piece.rows = 1;
    }
    bytes_ += piece.rows * row_bytes(piece);
    pieces_.push_back(std::move(piece));
}

int64_t WeightReader::most_host_bytes() {
    return most_threads() * kSlotsPerThread * 2 * kChunkBytes;
}

void WeightReader::read(Position* position, const LoadProgress& progress) {
    const bool from_files = !checkpoint_.files().empty();
    const std::vector<Placed> pieces =
        in_file_order(checkpoint_, std::exchange(pieces_, std::vector<WeightPiece>()));
    const int64_t total = std::exchange(bytes_, 0);
    const std::vector<Chunk> chunks = chunks_of(pieces, from_files);
    if (chunks.empty()) return;
    int64_t done = 0;
    if (progress) progress(0, total);
    Ring(backend_, checkpoint_, pieces, chunks).copy(position, [&](const Chunk& chunk) {
        for (size_t i = chunk.first; i < chunk.last; ++i) {
            done += pieces[i].piece.rows * row_bytes(pieces[i].piece);
        }
        if (progress) progress(done, total);
    });
    if (from_files) checkpoint_.check_unchanged();
}

}  // namespace quadrille
