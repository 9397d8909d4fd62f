// SPDX-License-Identifier: Apache-2.0
// The process that launched this rank. When mpirun is killed its ranks live on for about a second,
// while a new run of the same job may already start: a rank whose parent is gone must commit
// nothing more. A process that no launcher started may outlive its parent (nohup).
#pragma once

#include <sys/types.h>

namespace quadrille {

class Launcher {
  public:
    // The parent as of now; made at the start of the program.
    Launcher();
    // Asked right before every commit.
    bool gone() const;

  private:
    pid_t parent_ = 0;  // 0: no launcher, never gone
};

}  // namespace quadrille
