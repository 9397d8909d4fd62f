// SPDX-License-Identifier: Apache-2.0
// Device: the memory that a backend's ops work on, the order of what it is given, and work that is
// recorded once and replayed. Ops and copies run in the order of the calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace quadrille {

// Work of a backend that was recorded; replayed, in stream order, as often as wanted. It must not
// outlive its backend or the memory it works on.
class Recording {
  public:
    virtual ~Recording() = default;
    virtual void replay() = 0;
};

// A place in the order of what a device was given.
class Mark {
  public:
    virtual ~Mark() = default;
    virtual void wait() = 0;  // until everything before it is done
};

// What memory is for: the classes that a plan tells apart.
enum class Memory : uint8_t { weights, latents, state, draft_context, pass };

class Device {
  public:
    virtual ~Device() = default;

    virtual std::string name() const = 0;
    virtual std::string device() const = 0;  // for provenance: processor or GPU name
    // Libraries and drivers it runs on, with versions, for provenance.
    virtual std::vector<std::string> libraries() const { return {}; }
    // True: its memory is the host's, so that anyone may read and write it.
    virtual bool on_host() const { return false; }

    // True: its memory lies in the host's main memory, beside the pages of files.
    virtual bool shares_host_memory() const { return on_host(); }
    // Bytes that allocate can still give; -1: not known.
    virtual int64_t available() const { return -1; }
    // True: memory is only counted, nothing is read, moved or computed.
    virtual bool on_paper() const { return false; }

    // 64-byte aligned, zero-filled. nullptr for 0 bytes. Throws Error{device} when there is none.
    virtual void* allocate(int64_t bytes) = 0;
    virtual void* allocate_for(Memory, int64_t bytes) { return allocate(bytes); }
    virtual void release(void* pointer) noexcept = 0;
    virtual void* allocate_host(int64_t bytes) = 0;  // pinned where that means something
    virtual void release_host(void* pointer) noexcept = 0;
    // host of allocate_host is read when the copy runs, and stays as it is until then; any other
    // may be reused on return.
    virtual void upload(void* to, const void* host, int64_t bytes) = 0;
    virtual void download(void* host, const void* from, int64_t bytes) = 0;
    virtual void copy(void* to, const void* from, int64_t bytes) = 0;
    virtual void fill_zero(void* to, int64_t bytes) = 0;
    virtual void synchronize() = 0;
    // nullptr: everything before it is done already.
    virtual std::unique_ptr<Mark> mark() {
        synchronize();
        return nullptr;
    }
    // A download that nobody waits for: done with the next synchronize(). host: of allocate_host.
    virtual void fetch(void* host, const void* from, int64_t bytes) { download(host, from, bytes); }

    // True: record() works.
    virtual bool records() const { return false; }
    // What `work` asks of this backend, recorded and not done. `work` has run before with the same
    // shapes, uploads from memory of allocate_host only, and neither downloads nor allocates.
    virtual std::unique_ptr<Recording> record(const std::function<void()>& work);
};

}  // namespace quadrille
