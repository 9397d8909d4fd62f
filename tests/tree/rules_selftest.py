#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one violation of each rule of rules.py in an otherwise clean tree; TAP, one point a plant."""
import os
import subprocess
import sys
import tempfile

import cpp_functions
import rooms
import rules

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
EIGHT = "int eight(int a, std::map<int, int> b, int c, int d, int e, int f, int g, int (*h)(int, int)) {}\n"
SIXTY = "void sixty() {\n" + "    f([](int x) { return '{'; }, \"}\");  // }\n" * 58 + "}\n"
CLEAN = {
    "kernels/view.h": SPDX + "#pragma once\n",
    "kernels/cpu/gemm.cpp": SPDX + '#include "kernels/view.h"\n#include <vector>\n',
    "kernels/cuda/copy.cu": SPDX + "template <int kBits>\n__global__ void __launch_bounds__(warps(kBits) * 32)\n"
                            "    copy_kernel(View<float> out) {\n    // first\n    wait_for_earlier_kernels();\n}\n",
    "kernels/cuda/machine_rates.cu": SPDX + "__global__ void read_kernel(const float* from) { *from; }\n",
    "kernels/cuda/hyper.cu": SPDX + "__global__ void gates_kernel() { if (early()) wait_for_earlier_kernels(); }\n",
    "io/h5/h5.cpp": SPDX + '#include <hdf5.h>\n',
    "runtime/ranks/mpi.cpp": SPDX + '#include "kernels/view.h"\n#include <mpi.h>\n',
    "runtime/ranks/comm_nccl.cpp": SPDX + "#include <nccl.h>\n#include <cuda_runtime.h>\n",
    "tests/kernels/view_test.cpp": SPDX + '#include "kernels/view.h"\n',
    "io/just.cpp": SPDX + "int x;\n" * 399,
    "io/functions.cpp": SPDX + "// Grouping is final\n// For all, with commas.\n" + EIGHT + SIXTY,
    "docs/design.md": "# Design\n" + "word " * 179 + "\n\n## 2. Rooms\n\n```\nkernels/ a\n  cpu/ b\n  cuda/ c\n"
                      "io/ d\n  h5/ e\nruntime/ f\n  ranks/ g\n```\n\n## 3. Ops\n\n| " + "word " * 200 + "|\n",
    "tools/run.sh": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\nls /usr/local ../shared\n",
}
FUNCTIONS = """#define F(x) void x() { {
struct A : B<int> {
    A() : a_{1}, b_(2) {}
    bool operator()(int a, int b) const { return a < b; }
    A& operator=(const A&) = default;
    enum class C { d, e };
};
inline constexpr int kValues[] = {1, 2};
const auto kLambda = [](int x) { return x; };
namespace {
const char* kText = R"x(void no() {)x";
TEST(A, B) {
    const char brace = '{';
}
}  // namespace
template <class T, int N = 2>
__device__ __forceinline__ T largest(const T (&of)[N],
                                     View<T> to) requires(N > 1) {
    return of[0];
}
"""
FOUND = [("A", 3, 1, 0), ("operator_call", 4, 1, 2), ("TEST", 12, 3, 2), ("largest", 16, 5, 2)]
PLANTS = [  # rule, path, text
    ("foreign_headers", "runtime/engine.cpp", SPDX + "#include <mpi.h>\n"),
    ("foreign_headers", "tests/io/x_test.cpp", SPDX + "#  include <hdf5.h>\n"),
    ("foreign_headers", "runtime/ranks/comm_self.cpp", SPDX + '#include <nccl.h>\n'),
    ("foreign_headers", "kernels/cpu/add.cpp", SPDX + "#include <cuda_runtime.h>\n"),
    ("no_upward_include", "kernels/up.cpp", SPDX + '#include "io/h5/h5.cpp"\n'),
    ("no_upward_include", "runtime/up.cpp", SPDX + '#include "tests/kernels/view_test.cpp"\n'),
    ("includes_from_root", "kernels/near.cpp", SPDX + '#include "view.h"\n'),
    ("backends_are_private", "jobs/peek.cpp", SPDX + '#include "kernels/cpu/gemm.cpp"\n'),
    ("length", "io/long.cpp", SPDX + "int x;\n" * 400),
    ("length", "kernels/cuda/long.cu", SPDX + "int x;\n" * 400),
    ("functions_are_short", "io/f.cpp", SPDX + SIXTY.replace("() {\n", "() {\n\n")),
    ("functions_are_short", "io/f.cpp", SPDX + "namespace a {\nclass B final : public C<int> {\n    "
     + SIXTY.replace("() {\n", "() const noexcept(true) {\n\n") + "};\n}\n"),
    ("functions_are_short", "io/f.cpp", SPDX + "A::A(int b)\n    : b_(b), c_{b, [] { return 1; }}, d_{} {\n"
     + "x;\n" * 58 + "}\n"),
    ("functions_are_short", "io/f.cpp", SPDX + "template <class T = A<1>>\nT f(" + "int, " * 8 + "int) {}\n"),
    ("functions_are_short", "kernels/cuda/f.cu", SPDX + "__global__ void __launch_bounds__(64) f(" + "int, " * 8
     + "int) {\n    wait_for_earlier_kernels();\n}\n"),
    ("paragraphs_are_short", "docs/step.md", "# Step\n\n" + ("word " * 60 + "\n") * 4),
    ("paragraphs_are_short", "README.md", "* short\n* " + "word " * 200 + "\n"),
    ("comments_begin_with_a_subject", "io/c.cpp", SPDX + "// Of the last step.\nint x;\n"),
    ("comments_begin_with_a_subject", "io/c.cpp", SPDX + "int x;\n    // Whether it works\n    // at all.\n"),
    ("rooms_in_order", "io/h5/up.cpp", SPDX + '#include "io/functions.cpp"\n#include "io/prompts/p.h"\n'),
    ("rooms_in_order", "kernels/cuda/copy.cuh", SPDX + '#pragma once\n#include "kernels/cpu/gemm.cpp"\n'),
    ("rooms_are_described", "io/new/a.cpp", SPDX),
    ("tests_mirror_rooms", "tests/io/old/a_test.cpp", SPDX),
    ("licence_line", "jobs/bare.cpp", "int main() {}\n"),
    ("licence_line", "tools/bare.py", "#!/usr/bin/env python3\nprint()\n"),
    ("pragma_once", "io/twice.h", SPDX + "struct A {};\n"),
    ("no_machine_paths", "tools/here.sh", "# SPDX-License-Identifier: Apache-2.0\ncd /wo" "rk/x\n"),
    ("no_machine_paths", "README.md", "see `/ho" "me/me/x`\n"),
    ("no_stray_words", "io/later.cpp", SPDX + "// TO" "DO: later\n"),
    ("no_stray_words", "README.md", "as issue " "12 says\n"),
    ("kernels_wait", "kernels/cuda/add.cu", SPDX + "__global__ void add_kernel(int n) {\n    use(n);\n}\n"),
    ("kernels_wait", "kernels/cuda/add.cuh", SPDX + "#pragma once\n__global__ void add_kernel(int n) {\n"
     "    if (n == 0) return;\n    wait_for_earlier_kernels();\n}\n"),
    ("kernels_wait", "kernels/cuda/add.cu", SPDX + "__global__ void add_kernel() {\n    // wait_for_earlier_kernels();\n"
     "}\n"),
    ("kernels_wait", "kernels/cuda/hyper.cu", SPDX + "__global__ void gates_kernel() {}  // wait_for_earlier_kernels();\n"),
    ("kernels_wait", "kernels/cuda/hyper.cu", SPDX),
]


def complaints(files):
    return {rule.__name__: list(rule(files)) for rule in rules.RULES}


def main():
    points = [("a clean tree passes", not any(complaints(CLEAN).values()))]
    for name, path, text in PLANTS:
        found = complaints({**CLEAN, path: text})
        points.append((f"{name} sees {path}", len(found[name]) == 1 and path in found[name][0]))
    points.append(("circles of rooms are found", rooms.circles({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c"]))
    found = [(f.name, f.line, f.lines, f.parameters) for f in cpp_functions.functions(FUNCTIONS)]
    points.append(("functions are found as they are", found == FOUND))
    # Through files and the command line: what a walk reads is what the rules judge.
    with tempfile.TemporaryDirectory() as root:
        for path, text in {**CLEAN, "io/up.cpp": SPDX + '#include "runtime/ranks/mpi.cpp"\n'}.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        run = subprocess.run([sys.executable, rules.__file__, root], capture_output=True, text=True, check=False)
        points.append(("the script reports a planted file",
                       "not ok 3 - no_upward_include" in run.stdout and "# io/up.cpp:2:" in run.stdout
                       and run.stdout.count("\nnot ok") == 1 + (len(CLEAN) + 1 <= 10)))
    print(f"1..{len(points)}")
    for number, (claim, holds) in enumerate(points, 1):
        print("ok" if holds else "not ok", number, "-", claim)


if __name__ == "__main__":
    main()
