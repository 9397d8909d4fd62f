// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/mpi.h"

#include "kernels/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <sched.h>
#include <string_view>
#include <utility>

namespace quadrille {
namespace mpi {

void check(int code, const char* call, std::source_location where) {
    if (code == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
    throw Error(ErrorKind::comm,
                fmt::format("{}: {}", std::string_view(call, std::strcspn(call, "(")),
                            length > 0 ? text.data() : "unknown MPI error"),
                where);
}

std::string library_version() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_CHECK(MPI_Get_library_version(text.data(), &length));
    return std::string(text.data(), std::strcspn(text.data(), ",\n"));
}

}  // namespace mpi

namespace {

constexpr const char* kYield = "OMPI_MCA_mpi_yield_when_idle";
constexpr size_t kHostBytes = 256;

// The first number in an environment value such as "4" or Slurm's "4(x2),3".
std::optional<int> number_of(const char* variable) {
    const char* const value = std::getenv(variable);
    if (value == nullptr) return std::nullopt;
    int number = 0;
    const auto [stop, error] = std::from_chars(value, value + std::strlen(value), number);
    if (error != std::errc{} || stop == value) return std::nullopt;
    return number;
}

int cores_of_this_process() {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
    return std::max(CPU_COUNT(&cores), 1);
}

// A rank that waits inside MPI polls. With more ranks than cores it then holds the core that the
// rank it waits for needs, and a collective takes 10 ms instead of 10 us. Open MPI sees this only
// when mpirun was told to oversubscribe, not under srun or with a host list; it reads the
// setting in MPI_Init, so that is where we may still set it. The user's own setting wins.
void yield_when_oversubscribed() {
    if (std::getenv(kYield) != nullptr) return;
    std::optional<int> ranks;
    for (const char* name :
         {"OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
        if (!ranks) ranks = number_of(name);
    }
    if (ranks && *ranks > cores_of_this_process()) setenv(kYield, "1", 0);
}

void return_errors(MPI_Comm comm) {
    MPI_CHECK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
}

// True while an exception is on its way out: peers may be anywhere, so nothing collective may run.
bool unwinding(int exceptions_at_start) {
    return std::uncaught_exceptions() > exceptions_at_start;
}

}  // namespace

// ---- communicators ------------------------------------------------------------------------------

MpiComm::MpiComm(MPI_Comm comm) : comm_(comm) {
    return_errors(comm_);
}

MpiComm MpiComm::duplicate(MPI_Comm parent) {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_CHECK(MPI_Comm_dup(parent, &comm));
    return MpiComm(comm);
}

MpiComm MpiComm::split(MPI_Comm parent, int color, int key) {
    require(color >= 0, "a split has a color of at least 0");
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_CHECK(MPI_Comm_split(parent, color, key, &comm));
    return MpiComm(comm);
}

MpiComm MpiComm::split_by_host(MPI_Comm parent) {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_CHECK(MPI_Comm_split_type(parent, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm));
    return MpiComm(comm);
}

MpiComm::~MpiComm() {
    if (comm_ == MPI_COMM_NULL || std::uncaught_exceptions() > 0) return;
    int finalized = 0;
    if (MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Comm_free(&comm_);
}

int MpiComm::rank() const {
    int rank = 0;
    MPI_CHECK(MPI_Comm_rank(comm_, &rank));
    return rank;
}

int MpiComm::size() const {
    int size = 0;
    MPI_CHECK(MPI_Comm_size(comm_, &size));
    return size;
}

// ---- session ------------------------------------------------------------------------------------

MpiSession::MpiSession() : exceptions_at_start_(std::uncaught_exceptions()) {
    yield_when_oversubscribed();
    int provided = MPI_THREAD_SINGLE;
    MPI_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
    return_errors(MPI_COMM_WORLD);
    return_errors(MPI_COMM_SELF);
    if (provided < MPI_THREAD_MULTIPLE) {
        throw Error(ErrorKind::comm,
                    fmt::format("MPI: expected thread support MPI_THREAD_MULTIPLE ({}), found {}",
                                MPI_THREAD_MULTIPLE, provided));
    }
    world_ = make_mpi_comm(MpiComm::duplicate(MPI_COMM_WORLD));
    const MpiComm local = MpiComm::split_by_host(MPI_COMM_WORLD);
    local_rank_ = local.rank();
    local_size_ = local.size();

    std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
    int length = 0;
    MPI_CHECK(MPI_Get_processor_name(name.data(), &length));
    std::array<char, kHostBytes> own{};
    std::copy_n(name.data(), std::min(static_cast<size_t>(length), kHostBytes - 1), own.data());
    std::vector<std::array<char, kHostBytes>> all(static_cast<size_t>(size()));
    world_->all_gather_host(all.data(), own.data(), kHostBytes);
    for (const auto& host : all) hosts_.emplace_back(host.data());
}

MpiSession::~MpiSession() {
    if (unwinding(exceptions_at_start_)) return;  // the process ends, mpirun ends the others
    world_.reset();
    MPI_Finalize();
}

std::unique_ptr<Communicator> MpiSession::split(int color, int key) {
    return make_mpi_comm(MpiComm::split(MPI_COMM_WORLD, color, key));
}

MpiComm MpiSession::duplicate() const {
    return MpiComm::duplicate(MPI_COMM_WORLD);
}

void MpiSession::abort(int code) noexcept {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);  // MPI_Abort may return when its daemon is gone
}

// ---- counter ------------------------------------------------------------------------------------

SharedCounters::SharedCounters(const MpiComm& comm, int count) : count_(count) {
    int64_t* number = nullptr;
    const MPI_Aint bytes = comm.rank() == 0 ? MPI_Aint{sizeof(int64_t)} * count : MPI_Aint{0};
    MPI_CHECK(
        MPI_Win_allocate(bytes, sizeof(int64_t), MPI_INFO_NULL, comm.get(), &number, &window_));
    MPI_CHECK(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN));
    MPI_CHECK(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_));
    if (comm.rank() == 0) {
        for (int counter = 0; counter < count_; ++counter) fetch(0, counter, MPI_REPLACE);
    }
    MPI_CHECK(MPI_Barrier(comm.get()));
}

SharedCounters::~SharedCounters() {
    if (std::uncaught_exceptions() > 0) return;
    MPI_Win_unlock_all(window_);
    MPI_Win_free(&window_);
}

int64_t SharedCounters::fetch(int64_t value, int counter, MPI_Op op) {
    require(counter >= 0 && counter < count_, "a counter that there is");
    int64_t before = 0;
    MPI_CHECK(MPI_Fetch_and_op(&value, &before, MPI_INT64_T, 0, counter, op, window_));
    MPI_CHECK(MPI_Win_flush(0, window_));
    return before;
}

int64_t SharedCounters::fetch_add(int64_t amount, int counter) {
    return fetch(amount, counter, MPI_SUM);
}

int64_t SharedCounters::fetch_max(int64_t value, int counter) {
    return fetch(value, counter, MPI_MAX);
}

// ---- mailbox ------------------------------------------------------------------------------------

Mailbox::Mailbox(MpiComm comm, size_t message_bytes)
    : comm_(std::move(comm)),
      rank_(comm_.rank()),
      size_(comm_.size()),
      peers_(static_cast<size_t>(size_)) {
    for (Peer& peer : peers_) {
        peer.out.resize(message_bytes);
        peer.in.resize(message_bytes);
    }
}

Mailbox::~Mailbox() {
    if (std::uncaught_exceptions() > 0) return;
    for (Peer& peer : peers_) {
        for (MPI_Request* request : {&peer.sending, &peer.receiving}) {
            if (*request == MPI_REQUEST_NULL) continue;
            MPI_Cancel(request);
            MPI_Request_free(request);
        }
    }
}

bool Mailbox::done(MPI_Request& request) {
    int flag = 0;
    MPI_CHECK(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
    return flag != 0;
}

bool Mailbox::post(int to, const void* message) {
    Peer& peer = peers_.at(static_cast<size_t>(to));
    if (!done(peer.sending)) return false;
    std::memcpy(peer.out.data(), message, peer.out.size());
    MPI_CHECK(MPI_Isend(peer.out.data(), static_cast<int>(peer.out.size()), MPI_BYTE, to, 0,
                        comm_.get(), &peer.sending));
    return true;
}

bool Mailbox::sent(int to) {
    return done(peers_.at(static_cast<size_t>(to)).sending);
}

bool Mailbox::take(int from, void* message) {
    Peer& peer = peers_.at(static_cast<size_t>(from));
    if (peer.receiving == MPI_REQUEST_NULL) {
        MPI_CHECK(MPI_Irecv(peer.in.data(), static_cast<int>(peer.in.size()), MPI_BYTE, from, 0,
                            comm_.get(), &peer.receiving));
    }
    if (!done(peer.receiving)) return false;
    std::memcpy(message, peer.in.data(), peer.in.size());
    return true;
}

// ---- launcher -----------------------------------------------------------------------------------

bool launched() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
        if (number_of(name)) return true;
    }
    return false;
}

bool launched_without_pmi() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"}) {
        if (std::getenv(name) != nullptr) return false;
    }
    return number_of("SLURM_STEP_NUM_TASKS").value_or(1) > 1;
}

bool launched_with_others() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
        if (const std::optional<int> ranks = number_of(name)) return *ranks > 1;
    }
    return false;
}

}  // namespace quadrille
