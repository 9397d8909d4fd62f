// SPDX-License-Identifier: Apache-2.0
#include "jobs/generate/member_files.h"

#include "io/results/run_folder.h"

#include <filesystem>
#include <utility>

namespace quadrille {

MemberFiles::MemberFiles(const Around& around, const RunShape& shape)
    : RunFiles(around), run_(shape.run.data()), start_(shape.start) {
    set_shape(shape);
}

void MemberFiles::join(int group, std::vector<bool> done, std::vector<char> ends) {
    done_ = std::move(done);
    const std::filesystem::path folder = parts_folder(out_);
    lock_.emplace(folder, around_.options.locking, RunLock::kPatience, group);
    writer_.emplace(GroupWriter::Options{.folder = folder,
                                         .group = group,
                                         .layout = layout(),
                                         .run = run_,
                                         .ids = source_->ids(),
                                         .before_commit = around_.before_commit},
                    *lock_);
    figures_ = figures_path(folder, group, start_);
    take_up_earlier(std::move(ends));
}

void MemberFiles::write(Generation generation) {
    writer_->add(std::move(generation));
}

void MemberFiles::write_running(std::vector<Generation> running) {
    writer_->keep(std::move(running));
}

void MemberFiles::commit_part(bool only_if_old) {
    only_if_old ? writer_->commit_if_old() : writer_->commit();
}

}  // namespace quadrille
