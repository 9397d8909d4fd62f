// SPDX-License-Identifier: Apache-2.0
#include "jobs/options/common_flags.h"

#include <string>
#include <vector>

namespace quadrille {

CLI::Option* add_output_exists(CLI::App& app, OutputExists& value, bool resumable) {
    std::vector<std::string> names = {"fail", "overwrite"};
    if (resumable) names.emplace_back("skip");
    return app
        .add_option_function<std::string>(
            "--output-exists",
            [&value](const std::string& text) {
                value = text == "overwrite" ? OutputExists::overwrite
                        : text == "skip"    ? OutputExists::skip
                                            : OutputExists::fail;
            },
            resumable ? "fail, overwrite or skip when OUT is complete [fail]"
                      : "fail or overwrite when OUT is complete [fail]")
        ->check(one_of(names))
        ->option_text("WHAT");
}

CLI::Option* add_text(CLI::App& app, const char* name, std::string& value, const char* what,
                      const char* help, const char* value_name) {
    return app.add_option(name, value, help)->check(not_empty(what))->option_text(value_name);
}

CLI::Option* add_time(CLI::App& app, const char* name, int64_t& value, int64_t low,
                      const char* help) {
    return app
        .add_option_function<std::string>(
            name, [&value](const std::string& text) { value = *parse_time(text); }, help)
        ->check(time_value(low))
        ->option_text("TIME");
}

}  // namespace quadrille
