// SPDX-License-Identifier: Apache-2.0
// RecordRunner: what becomes of records, some at a time. An Engine generates, a Scorer scores; the
// loop of a job hands prompts in and takes generations out.
#pragma once

#include "io/records.h"

#include <cstdint>
#include <vector>

namespace quadrille {

struct EngineStats;

class RecordRunner {
  public:
    virtual ~RecordRunner() = default;

    virtual void submit(Prompt prompt) = 0;
    virtual bool idle() const = 0;
    // Records submitted and not finished.
    virtual int64_t in_flight() const = 0;
    // Forgets the records that have not begun.
    virtual void drop_queued() = 0;
    // Does the next piece of work. Collective.
    virtual void step() = 0;
    // Records finished since the last call, in the order they finished.
    virtual std::vector<Generation> take_finished() = 0;
    // What the running records have emitted so far, those that have emitted nothing left out:
    // status cancelled. Given back as Prompt::kept, they go on as if nothing had been between.
    virtual std::vector<Generation> unfinished() const = 0;
    virtual const EngineStats& stats() const = 0;
};

}  // namespace quadrille
