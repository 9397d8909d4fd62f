// SPDX-License-Identifier: Apache-2.0
// The one program: chooses a subcommand.
int main() {
    return 2;
}
