// SPDX-License-Identifier: Apache-2.0
#include "kernels/error.h"

#include "kernels/dtype.h"

namespace quadrille {

const char* name(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::usage:
            return "usage";
        case ErrorKind::input:
            return "input";
        case ErrorKind::io:
            return "io";
        case ErrorKind::device:
            return "device";
        case ErrorKind::comm:
            return "comm";
        case ErrorKind::internal:
            return "internal";
    }
    return "?";
}

const char* name(Dtype dtype) {
    switch (dtype) {
        case Dtype::f32:
            return "F32";
        case Dtype::f16:
            return "F16";
        case Dtype::bf16:
            return "BF16";
        case Dtype::f64:
            return "F64";
        case Dtype::i8:
            return "I8";
        case Dtype::u8:
            return "U8";
        case Dtype::i16:
            return "I16";
        case Dtype::i32:
            return "I32";
        case Dtype::i64:
            return "I64";
        case Dtype::boolean:
            return "BOOL";
        case Dtype::f8_e4m3:
            return "F8_E4M3";
        case Dtype::f8_e5m2:
            return "F8_E5M2";
    }
    return "?";
}

}  // namespace quadrille
