// SPDX-License-Identifier: Apache-2.0
// The help of a job in screens of 80 x 24: what most runs need first, then a screen a group of
// options.
#pragma once

#include <string>
#include <vector>

namespace quadrille {

struct HelpParts {
    std::string job;       // its name
    std::string whole;     // CLI11's help of it
    std::string required;  // of the command line, as "--target DIR --out F"
    std::string example;   // a command
};

// "records" for the group "Records"; the groups of the help in their order.
std::vector<std::string> help_topics(const std::string& whole);
// The first screen; `topic`: that group alone; "all": everything.
std::string help_text(const HelpParts& parts, const std::string& topic);

}  // namespace quadrille
