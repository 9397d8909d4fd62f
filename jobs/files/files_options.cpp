// SPDX-License-Identifier: Apache-2.0
#include "jobs/files/files_options.h"

#include "jobs/options/common_flags.h"

namespace quadrille {

namespace {

void add_paths(CLI::App& app, const char* name, std::vector<std::string>& value, const char* what,
               const char* help, const char* value_name) {
    app.add_option(name, value, help)->check(not_empty(what))->option_text(value_name);
}

void add_format(CLI::App& app, std::string& value, const std::vector<std::string>& names,
                const char* help) {
    app.add_option("--format", value, help)->check(one_of(names))->option_text("NAME");
}

}  // namespace

void add_flags(CLI::App& app, InspectOptions& options) {
    add_paths(app, "paths", options.paths, "a file or folder",
              "HDF5 files of ours, OUT.parts, checkpoint folders", "PATH...");
    add_number(app, "--limit", options.limit, 0, kAny, "records shown of each file [5]");
    app.add_flag("--json", options.json, "sums of generations, JSON, an object each");
}

void add_flags(CLI::App& app, PackOptions& options) {
    add_paths(app, "inputs", options.inputs, "a file", "text lines or JSON lines", "FILE...");
    add_text(app, "--out", options.out, "an output file", "prompts, HDF5", "FILE");
    add_text(app, "--target", options.target, "a checkpoint folder",
             "checkpoint with the tokenizer (or EXL3_MODEL)", "DIR");
    add_format(app, options.format, {"auto", "text", "jsonl"},
               "auto, text or jsonl [auto: by suffix]");
    add_number(app, "--limit", options.limit, 1, kAny, "pack the first N records only");
    add_output_exists(app, options.output_exists);
}

void add_flags(CLI::App& app, UnpackOptions& options) {
    add_paths(app, "inputs", options.inputs, "a file", "generations, HDF5, or OUT.parts of a run",
              "FILE...");
    add_text(app, "--out", options.out, "an output file", "JSON lines; - is standard output [-]",
             "FILE");
    add_format(app, options.format, {"jsonl", "openai"},
               "jsonl, or openai: batch output lines [jsonl]");
    add_text(app, "--target", options.target, "a checkpoint folder",
             "checkpoint, for logprobs of openai (or EXL3_MODEL)", "DIR");
    add_number(app, "--limit", options.limit, 1, kAny, "write the first N lines only");
    add_output_exists(app, options.output_exists);
}

void add_flags(CLI::App& app, MergeOptions& options) {
    add_paths(app, "inputs", options.inputs, "a file", "generations of all shards, HDF5",
              "FILE...");
    add_text(app, "--out", options.out, "an output file", "generations, HDF5", "FILE");
    add_output_exists(app, options.output_exists);
}

void finish(InspectOptions& options, const Invocation& /*invocation*/) {
    need(!options.paths.empty(), "inspect", "at least one file or folder");
}

void finish(PackOptions& options, const Invocation& /*invocation*/) {
    need(!options.inputs.empty(), "pack", "at least one file of text or JSON lines");
    need(!options.out.empty(), "--out", "an output file");
}

void finish(UnpackOptions& options, const Invocation& /*invocation*/) {
    need(!options.inputs.empty(), "unpack", "at least one generations file");
}

void finish(MergeOptions& options, const Invocation& /*invocation*/) {
    need(!options.inputs.empty(), "merge", "the generations files of all shards");
    need(!options.out.empty(), "--out", "an output file");
}

}  // namespace quadrille
