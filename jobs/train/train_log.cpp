// SPDX-License-Identifier: Apache-2.0
#include "jobs/train/train_log.h"

#include "io/files.h"
#include "jobs/options/option_checks.h"

#include <fmt/format.h>

#include <fstream>
#include <numeric>
#include <utility>

namespace quadrille {

TrainLog::TrainLog(std::filesystem::path path, int64_t step)
    : path_(std::move(path)),
      text_(
          "step\twhat\trate\tloss\tblock_ce\tkl\tselector\tanchor\thidden\tnorm\taccept_length\t"
          "accept_length_head\tteacher_forced\n") {
    std::ifstream in(path_);
    std::string line;
    std::getline(in, line);  // the heads of the columns
    while (step > 0 && std::getline(in, line)) {
        const auto at = parse_integer(line.substr(0, line.find('\t')));
        if (at && *at <= step) text_ += line + "\n";
    }
}

void TrainLog::add(int64_t step, const char* what, double rate, const StepResult& result) {
    const LossReport& r = result.report;
    text_ += fmt::format(
        "{}\t{}\t{:.6g}\t{:.9g}\t{:.9g}\t{:.9g}\t{:.9g}\t{:.9g}\t{:.9g}\t{:.6g}\t"
        "{:.4f}\t{:.4f}\t{:.4f}\n",
        step, what, rate, r.total, r.block_ce, r.kl, r.selector, r.anchor, r.hidden, result.norm,
        r.accept_length(), r.accept_length_by_head(), teacher_forced(r));
}

void TrainLog::save() const {
    write_durably(path_, text_);
}

double teacher_forced(const LossReport& report) {
    const auto sum = [](const std::vector<int64_t>& list) {
        return static_cast<double>(std::accumulate(list.begin(), list.end(), int64_t{0}));
    };
    const double all = sum(report.supervised);
    return all == 0 ? 0 : sum(report.right) / all;
}

}  // namespace quadrille
