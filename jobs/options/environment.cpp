// SPDX-License-Identifier: Apache-2.0
#include "jobs/options/environment.h"

#include <fmt/format.h>

#include <cstdlib>

namespace quadrille {

Invocation read_invocation(int argc, const char* const* argv) {
    Invocation invocation;
    for (int i = 1; i < argc; ++i) invocation.arguments.emplace_back(argv[i]);
    const auto take = [&invocation](const char* name) {
        const char* const value = std::getenv(name);
        if (value != nullptr) invocation.environment.push_back(fmt::format("{}={}", name, value));
    };
    for (const FromEnvironment& entry : kFromEnvironment) take(entry.variable);
    take(kCudaGraphs);
    take(kSlurmJob);
    take(kSlurmEnd);
    take(kLocking);
    return invocation;
}

std::string value_of(const Invocation& invocation, const std::string& variable) {
    for (const std::string& entry : invocation.environment) {
        if (entry.starts_with(variable + "=")) return entry.substr(variable.size() + 1);
    }
    return "";
}

}  // namespace quadrille
