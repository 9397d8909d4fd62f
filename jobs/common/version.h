// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace quadrille {

// The version of the program, and its commit ("" when it was not built from a repository).
std::string version();
std::string commit();

}  // namespace quadrille
