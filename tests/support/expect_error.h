// SPDX-License-Identifier: Apache-2.0
// Runs something that must throw Error of one kind with all the given parts in its message.
#pragma once

#include "kernels/error.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace quadrille::test {

template <class Action>
void expect_error(ErrorKind kind, std::initializer_list<std::string> parts, Action&& action) {
    try {
        action();
    } catch (const Error& error) {
        EXPECT_EQ(name(error.kind()), std::string(name(kind))) << error.what();
        for (const std::string& part : parts) {
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
                << "expected \"" << part << "\" in: " << error.what();
        }
        return;
    }
    ADD_FAILURE() << "expected an Error with \"" << (parts.size() ? *parts.begin() : "") << "\"";
}

}  // namespace quadrille::test
