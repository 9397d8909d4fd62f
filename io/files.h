// SPDX-License-Identifier: Apache-2.0
// What makes a file durable: fsync of files and folders, renames, folders. Every failure is an
// Error{io} that names the path and the system's reason.
#pragma once

#include <filesystem>
#include <string>

namespace quadrille {

void sync_file(const std::filesystem::path& path);
void sync_folder(const std::filesystem::path& path);
// Renames and fsyncs the folder of `to`: after it returns the new name survives a power cut.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
// Makes one folder; its parent must be there. False: it was there already.
bool create_folder(const std::filesystem::path& path);
// The folder that holds `path` ("." for a bare name).
std::filesystem::path folder_of(const std::filesystem::path& path);
std::string system_reason(int error_number);

}  // namespace quadrille
