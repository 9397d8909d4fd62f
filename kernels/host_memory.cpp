// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace quadrille {

namespace {

// The number behind `field` at the start of a line of a file; -1: there is none.
int64_t field_of(const std::string& path, const std::string& field) {
    std::ifstream file(path);
    std::string name;
    int64_t value = 0;
    for (std::string line; file >> name; std::getline(file, line)) {
        if (name == field && file >> value) return value;
    }
    return -1;
}

int64_t number_in(const std::string& path) {
    std::ifstream file(path);
    int64_t value = 0;
    return file >> value ? value : -1;  // "max": no limit
}

// The folder of this process's control group (version 2); "" where there is none.
std::string group_folder() {
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("0::/")) return "/sys/fs/cgroup" + line.substr(3);
    }
    return "";
}

}  // namespace

int64_t available_host_memory() {
    const int64_t kilobytes = field_of("/proc/meminfo", "MemAvailable:");
    int64_t available = kilobytes < 0 ? -1 : kilobytes * 1024;
    // A group is limited by those around it too.
    for (std::string group = group_folder(); group.size() >= std::string("/sys/fs/cgroup").size();
         group = group.substr(0, group.rfind('/'))) {
        const int64_t limit = number_in(group + "/memory.max");
        const int64_t used = number_in(group + "/memory.current");
        if (limit < 0 || used < 0) continue;
        const int64_t pages =
            std::max<int64_t>(field_of(group + "/memory.stat", "inactive_file"), 0);
        const int64_t left = std::max<int64_t>(limit - used + pages, 0);
        available = available < 0 ? left : std::min(available, left);
    }
    return available;
}

}  // namespace quadrille
