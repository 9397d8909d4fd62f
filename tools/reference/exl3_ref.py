#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""EXL3 reference codec in plain numpy: slow, explicit, bit-exact where it says so.

Written from the format facts in exl3.md (section numbers below refer to it). No code of another
project is used. Only numpy is needed:   /usr/bin/python3 exl3_ref.py            (self-test, ~1 min)

Conventions
  W is [K, N] = [in_features, out_features];  y = x @ W.
  A quantized linear holds
     trellis  int16  [K/16, N/16, 16*bits]    suh fp16 [K]    svh fp16 [N]
     mcg / mul1  0-dim int32 marker (selects the codebook), bias fp16 [N] optional.
  Codebook ids: 0 = "3inst" (no marker), 1 = "mcg", 2 = "mul1".
  W = diag(suh) . H_K . Wq . H_N . diag(svh), H = block-diagonal, blocks of 128, Sylvester / sqrt(128)
"""
from __future__ import annotations
import json
import struct
import sys
import numpy as np

# ----------------------------------------------------------------------------------------------
# Constants                                                                                   (§2)
# ----------------------------------------------------------------------------------------------

CB_3INST, CB_MCG, CB_MUL1 = 0, 1, 2
LCG_MULT, LCG_ADD = 89226354, 64248484            # codebook 0
MCG_MULT = 0xCBAC1FED                             # codebook 1; as int32 -877912083
MUL1_MULT = 0x83DCD12D                            # codebook 2; as int32 -2082680531
FP_AND, FP_XOR = 0x8FFF8FFF, 0x3B603B60           # codebooks 0 and 1
MUL1_BASE = 0x6400                                # fp16 bits of 1024.0
MUL1_SCALE_BITS = 0x1EEE                          # fp16 0.00676727294921875
MUL1_BIAS_BITS = 0xC931                           # fp16 -10.3828125
HAD_SCALE = np.float32(0.088388347648)            # 1/sqrt(128) in fp32: bits 0x3DB504F3
CODEBOOK_SCALE = 1.24371088                       # rms target of the regularized weight (all codebooks)


def f16_bits(b):
    """fp16 value(s) from raw bits."""
    return np.asarray(b, dtype=np.uint16).view(np.float16)


# ----------------------------------------------------------------------------------------------
# Codebooks: 16-bit state -> fp16                                                             (§2.3)
# ----------------------------------------------------------------------------------------------

def decode_states(states, cb: int) -> np.ndarray:
    """Decode 16-bit trellis states to fp16. Bit-exact with the GPU kernels."""
    s = np.asarray(states)
    if s.dtype == np.int16:
        s = s.view(np.uint16)
    x = s.astype(np.uint64)
    if cb in (CB_3INST, CB_MCG):
        x = x * np.uint64(LCG_MULT) + np.uint64(LCG_ADD) if cb == CB_3INST else x * np.uint64(MCG_MULT)
        x &= np.uint64(0xFFFFFFFF)                                  # mod 2^32
        x = (x & np.uint64(FP_AND)) ^ np.uint64(FP_XOR)
        lo = f16_bits((x & np.uint64(0xFFFF)).astype(np.uint16)).astype(np.float64)
        hi = f16_bits((x >> np.uint64(16)).astype(np.uint16)).astype(np.float64)
        return (lo + hi).astype(np.float16)                         # exact sum, one RNE rounding
    if cb == CB_MUL1:
        x = (x * np.uint64(MUL1_MULT)) & np.uint64(0xFFFFFFFF)
        total = sum(((x >> np.uint64(8 * i)) & np.uint64(255)) for i in range(4))   # 0..1020
        h = f16_bits((total + np.uint64(MUL1_BASE)).astype(np.uint16)).astype(np.float64)  # 1024+total
        k = float(f16_bits(MUL1_SCALE_BITS))
        b = float(f16_bits(MUL1_BIAS_BITS))
        return (h * k + b).astype(np.float16)     # exact in fp64, so this equals one fused fp16 fma
    raise ValueError("codebook must be 0, 1 or 2")


_TABLES: dict[int, np.ndarray] = {}


def codebook_table(cb: int) -> np.ndarray:
    """The 65536-entry fp16 table of a codebook."""
    if cb not in _TABLES:
        _TABLES[cb] = decode_states(np.arange(65536, dtype=np.uint16), cb)
    return _TABLES[cb]


# ----------------------------------------------------------------------------------------------
# Tile permutation: stream position t (0..255) -> (row = k within tile, col = n within tile)    (§3)
# ----------------------------------------------------------------------------------------------

def pos_to_rowcol(t):
    lane, j = t >> 3, t & 7
    row = 2 * (lane & 3) + (j & 1) + 8 * ((j >> 1) & 1)
    col = (lane >> 2) + 8 * (j >> 2)
    return row, col


def rowcol_to_pos(row, col):
    lane = 4 * (col & 7) + ((row & 7) >> 1)
    j = (row & 1) + 2 * (row >> 3) + 4 * (col >> 3)
    return 8 * lane + j


_T = np.arange(256)
POS_TO_FLAT = pos_to_rowcol(_T)[0] * 16 + pos_to_rowcol(_T)[1]     # stream pos -> row*16+col
FLAT_TO_POS = np.argsort(POS_TO_FLAT)                              # row*16+col -> stream pos


# ----------------------------------------------------------------------------------------------
# Bitstream                                                                                  (§2.1)
# ----------------------------------------------------------------------------------------------

def _as_u16(trellis) -> np.ndarray:
    a = np.ascontiguousarray(trellis)
    return a.view(np.uint16) if a.dtype == np.int16 else a.astype(np.uint16)


def unpack_states(trellis) -> np.ndarray:
    """trellis [..., 16*bits] (int16/uint16 as stored) -> states uint16 [..., 256], stream order.

    Pairs of 16-bit words are stored swapped, so that each little-endian uint32 read from memory holds
    32 consecutive stream bits, most significant first. Stream bit p = bit (31 - p%32) of u32[p//32].
    State t = the 16 stream bits that END with symbol t: positions (t+1)*bits-16 .. (t+1)*bits-1,
    modulo 256*bits, first one most significant.
    """
    w = _as_u16(trellis)
    bits = w.shape[-1] // 16
    assert w.shape[-1] == 16 * bits and 1 <= bits <= 8
    msb_first = w.reshape(*w.shape[:-1], 8 * bits, 2)[..., ::-1].reshape(w.shape)
    stream = np.unpackbits(np.ascontiguousarray(msb_first.astype(">u2")).view(np.uint8), axis=-1)
    t = np.arange(256)[:, None]
    idx = ((t + 1) * bits - 16 + np.arange(16)[None, :]) % (256 * bits)
    window = stream[..., idx].astype(np.uint32)                    # [..., 256, 16]
    return (window * (1 << np.arange(15, -1, -1)).astype(np.uint32)).sum(-1).astype(np.uint16)


def unpack_states_words(trellis) -> np.ndarray:
    """The same by 32-bit word arithmetic (the form a kernel uses); must equal unpack_states()."""
    w = _as_u16(trellis)
    bits = w.shape[-1] // 16
    words = w.reshape(*w.shape[:-1], 8 * bits, 2).astype(np.uint64)
    u32 = words[..., 0] | (words[..., 1] << np.uint64(16))         # plain little-endian load
    t = np.arange(256)
    b0 = t * bits + bits - 16 + 256 * bits                         # first bit (kept non-negative)
    b1 = b0 + 16                                                   # one past the last bit
    n = 8 * bits
    hi = u32[..., (b0 // 32) % n]
    lo = u32[..., ((b1 - 1) // 32) % n]
    shift = (((b1 - 1) // 32 + 1) * 32 - b1).astype(np.uint64)     # 0..31
    return ((((hi << np.uint64(32)) | lo) >> shift) & np.uint64(0xFFFF)).astype(np.uint16)


def pack_states(states, bits: int) -> np.ndarray:
    """states [..., 256] -> trellis int16 [..., 16*bits]. Only the low `bits` bits of each are stored."""
    s = np.asarray(states).astype(np.uint32) & ((1 << bits) - 1)
    shifts = np.arange(bits - 1, -1, -1, dtype=np.uint32)
    stream = ((s[..., None] >> shifts) & 1).astype(np.uint8).reshape(*s.shape[:-1], 256 * bits)
    msb_first = np.packbits(stream, axis=-1).view(">u2").astype(np.uint16)
    out = msb_first.reshape(*s.shape[:-1], 8 * bits, 2)[..., ::-1].reshape(*s.shape[:-1], 16 * bits)
    return np.ascontiguousarray(out).view(np.int16)


def symbols_to_states(symbols, bits: int) -> np.ndarray:
    """Any 256 symbols of `bits` bits make a valid (tail-biting) tile; this gives its states."""
    return unpack_states(pack_states(symbols, bits))


# ----------------------------------------------------------------------------------------------
# Dequantisation
# ----------------------------------------------------------------------------------------------

def dequant_inner(trellis, cb: int) -> np.ndarray:
    """Wq fp16 [K, N]: decoded weights in the rotated basis (what `reconstruct` yields). Bit-exact."""
    st = unpack_states(trellis)                                    # [K/16, N/16, 256]
    tk, tn, _ = st.shape
    tile = codebook_table(cb)[st][..., FLAT_TO_POS]                # stream order -> row-major tile
    return np.ascontiguousarray(tile.reshape(tk, tn, 16, 16).transpose(0, 2, 1, 3).reshape(tk * 16, tn * 16))


def tile_from_inner(wq: np.ndarray) -> np.ndarray:
    """[K, N] -> tiles [K/16, N/16, 256] in stream order (the inverse of dequant_inner's layout)."""
    k, n = wq.shape
    t = wq.reshape(k // 16, 16, n // 16, 16).transpose(0, 2, 1, 3).reshape(k // 16, n // 16, 256)
    return np.ascontiguousarray(t[..., POS_TO_FLAT])


# ----------------------------------------------------------------------------------------------
# Hadamard 128                                                                               (§4.1)
# ----------------------------------------------------------------------------------------------

def hadamard_matrix(n: int = 128) -> np.ndarray:
    """Unscaled Sylvester matrix, H[i, j] = (-1)^popcount(i & j). Symmetric; H @ H = n * I."""
    i = np.arange(n)
    x = i[:, None] & i[None, :]
    pop = sum((x >> b) & 1 for b in range(n.bit_length()))
    return np.where(pop & 1, -1.0, 1.0)


def fwht128(x: np.ndarray) -> np.ndarray:
    """Unscaled blockwise FWHT of the last axis (a multiple of 128), strides 1, 2, 4 .. 64 in x.dtype.
    In fp32 this reproduces the kernels bit for bit."""
    shape = x.shape
    v = np.array(x, copy=True).reshape(-1, 128)
    h = 1
    while h < 128:
        v = v.reshape(-1, 128 // (2 * h), 2, h)
        a, b = v[:, :, 0, :].copy(), v[:, :, 1, :].copy()
        v[:, :, 0, :], v[:, :, 1, :] = a + b, a - b
        v = v.reshape(-1, 128)
        h *= 2
    return v.reshape(shape)


def had_half(x, pre=None, post=None, scale=HAD_SCALE):
    """fp16 -> fp16 transform of rows: f16(x*pre); fp32 FWHT; * scale; f16; f16(* post). Bit-exact."""
    x = np.asarray(x, dtype=np.float16)
    if pre is not None:
        x = (x * np.asarray(pre, dtype=np.float16)).astype(np.float16)
    y = (fwht128(x.astype(np.float32)) * np.float32(scale)).astype(np.float16)
    if post is not None:
        y = (y * np.asarray(post, dtype=np.float16)).astype(np.float16)
    return y


def had_float(x, pre=None, post=None, scale=HAD_SCALE):
    """fp32 -> fp32 transform of rows, scales applied in fp32."""
    x = np.asarray(x, dtype=np.float32)
    if pre is not None:
        x = x * np.asarray(pre, dtype=np.float16).astype(np.float32)
    y = fwht128(x) * np.float32(scale)
    if post is not None:
        y = y * np.asarray(post, dtype=np.float16).astype(np.float32)
    return y


def dequant_weight(trellis, suh, svh, cb: int) -> np.ndarray:
    """Original-basis W fp64 [K, N] (mathematical value, no intermediate rounding)."""
    w = dequant_inner(trellis, cb).astype(np.float64)
    r = 1.0 / np.sqrt(128.0)
    w = fwht128(w.T).T * r                                         # H_K . Wq
    w = w * np.asarray(suh, dtype=np.float64)[:, None]
    w = fwht128(np.ascontiguousarray(w)) * r                       # . H_N
    return w * np.asarray(svh, dtype=np.float64)[None, :]


# ----------------------------------------------------------------------------------------------
# The linear                                                                                 (§4)
# ----------------------------------------------------------------------------------------------

def linear_forward(x, trellis, suh, svh, cb: int, out_fp32=False, bias=None) -> np.ndarray:
    """y = ((x*suh) H) Wq H * svh with the rounding points of the fused GEMM kernel:
    fp16 rotated input, wide accumulation, fp32 output transform. (Only the order of the K-sum, and the
    fp16 split-K partials of the fp16-output kernel, are not reproduced.)"""
    xh = had_half(x, pre=suh)                                      # fp16
    acc = (xh.astype(np.float64) @ dequant_inner(trellis, cb).astype(np.float64)).astype(np.float32)
    if out_fp32:
        y = had_float(acc, post=svh)
        return y if bias is None else y + np.asarray(bias, np.float32)
    y = (fwht128(acc) * HAD_SCALE).astype(np.float16)
    y = (y * np.asarray(svh, np.float16)).astype(np.float16)
    return y if bias is None else (y + np.asarray(bias, np.float16)).astype(np.float16)


def linear_forward_int8_mul1(x, trellis, suh, svh, slice_rows=None) -> np.ndarray:
    """Plain-int8 GEMV for mul1 (the `sq` form), fp32 output. One int8 scale per K-slice of
    `slice_rows` tile rows (None: one for the whole row). Weights enter as exact byte sums.   (§6.3)"""
    xh = had_half(x, pre=suh).astype(np.float32)
    st = unpack_states(trellis)
    tk, tn, _ = st.shape
    prod = (st.astype(np.uint64) * np.uint64(MUL1_MULT)) & np.uint64(0xFFFFFFFF)
    bsum = sum(((prod >> np.uint64(8 * i)) & np.uint64(255)) for i in range(4)).astype(np.int64)
    bsum = bsum[..., FLAT_TO_POS].reshape(tk, tn, 16, 16).transpose(0, 2, 1, 3).reshape(tk * 16, tn * 16)
    k_inv, k_bias = np.float32(f16_bits(MUL1_SCALE_BITS)), np.float32(f16_bits(MUL1_BIAS_BITS))
    step = 16 * (slice_rows or tk)
    acc = np.zeros((xh.shape[0], tn * 16), np.float32)
    corr = np.zeros((xh.shape[0], 1), np.float32)
    for k0 in range(0, tk * 16, step):
        a = xh[:, k0:k0 + step]
        q = np.maximum(np.abs(a).max(axis=1, keepdims=True), np.float32(1e-8)) / np.float32(127)
        ai = np.clip(np.rint(a * (np.float32(1) / q)), -127, 127).astype(np.int64)
        acc += q * (ai @ bsum[k0:k0 + step]).astype(np.float32)
        corr += (np.float32(1024) * k_inv + k_bias) * (q * ai.sum(axis=1, keepdims=True).astype(np.float32))
    return had_float(k_inv * acc + corr, post=svh)


# ----------------------------------------------------------------------------------------------
# Legacy packed signs, codebook selection, tensor parallel slices                   (§1.2, §1.3, §7)
# ----------------------------------------------------------------------------------------------

def unpack_signs(su) -> np.ndarray:
    """Legacy su/sv int16 [C/16] -> fp16 [C] of +1/-1. Bit i (LSB first) of word w = channel 16w+i; 1 = -1."""
    w = _as_u16(su)
    return np.where((w[:, None] >> np.arange(16)) & 1, -1.0, 1.0).reshape(-1).astype(np.float16)


def pack_signs(v) -> np.ndarray:
    neg = (np.asarray(v, np.float16).view(np.uint16) >> 15).reshape(-1, 16).astype(np.uint32)
    return (neg << np.arange(16, dtype=np.uint32)).sum(-1).astype(np.uint16).view(np.int16)


def codebook_of(tensors: dict) -> int:
    """tensors: mapping of suffix -> array. Presence selects the codebook; the value is only checked."""
    if "mcg" in tensors and "mul1" in tensors:
        raise ValueError("both mcg and mul1 markers present")
    for name, cb, want in (("mcg", CB_MCG, MCG_MULT), ("mul1", CB_MUL1, MUL1_MULT)):
        if name in tensors:
            got = int(np.asarray(tensors[name]).astype(np.int64).reshape(-1)[0]) & 0xFFFFFFFF
            if got != want:
                raise ValueError(f"{name} multiplier {got:#x}, expected {want:#x} (pre-0.0.9 experimental?)")
            return cb
    return CB_3INST


def tp_slice(t: dict, rank: int, size: int, mode: str) -> dict:
    """Column ('col', output) or row ('row', input) slice of one EXL3 linear; bounds are multiples of 128."""
    tk, tn, _ = t["trellis"].shape
    dim = (tn if mode == "col" else tk) * 16
    if dim % (128 * size):
        raise ValueError(f"{mode}: {dim} is not divisible by 128*{size}")
    a, b = dim // size * rank, dim // size * (rank + 1)
    o = dict(t)
    if mode == "col":
        o["trellis"], o["svh"] = t["trellis"][:, a // 16:b // 16], t["svh"][a:b]
        if t.get("bias") is not None:
            o["bias"] = t["bias"][a:b]
    else:
        o["trellis"], o["suh"] = t["trellis"][a // 16:b // 16], t["suh"][a:b]
        if t.get("bias") is not None and rank:
            o["bias"] = None
    return o


def load_safetensors_linear(path: str, key: str) -> dict:
    """Read <key>.{trellis,suh,svh,su,sv,mcg,mul1,bias} from one .safetensors file."""
    dt = {"I16": np.int16, "F16": np.float16, "I32": np.int32, "U16": np.uint16, "F32": np.float32}
    out = {}
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        hdr = json.loads(f.read(n))
        for suf in ("trellis", "suh", "svh", "su", "sv", "mcg", "mul1", "bias"):
            e = hdr.get(f"{key}.{suf}")
            if e:
                a, b = e["data_offsets"]
                f.seek(8 + n + a)
                out[suf] = np.frombuffer(f.read(b - a), dt[e["dtype"]]).reshape(e["shape"])
    for signs, full in (("su", "suh"), ("sv", "svh")):
        if full not in out and signs in out:
            out[full] = unpack_signs(out[signs])
    return out


# ----------------------------------------------------------------------------------------------
# Encoder: tail-biting Viterbi over one tile                                                 (§5.5)
# ----------------------------------------------------------------------------------------------

def viterbi_encode(tiles, bits: int, cb: int, exact=True, pinned=None):
    """tiles float32 [T, 256], stream order -> (values fp16 [T, 256], states uint16 [T, 256]).

    A node is the 16-bits bits shared by two neighbouring states: a state's high 16-bits bits are its
    incoming node, its low 16-bits bits its outgoing node. Two passes make the path tail-biting: pass 1
    starts in the middle of the tile and yields the node in front of position 0, pass 2 starts at
    position 0 with that node forced at both ends. exact=True uses the reference kernel's fp16 arithmetic
    (input, differences, fused multiply-add, costs); exact=False uses fp32. `pinned` [T] skips pass 1.
    """
    x = np.asarray(tiles, np.float32)
    n_t, B = x.shape[0], 1 << bits
    E = 65536 >> bits                                              # number of nodes
    dec = codebook_table(cb).reshape(B, E)                         # dec[k, out] for state k*E + out
    node_in = (np.arange(65536) >> bits).reshape(B, E)
    w16 = x.astype(np.float16)
    back = np.zeros((n_t, 256, E), np.uint16)
    rows = np.arange(n_t)
    f = np.float16 if exact else np.float32

    def forward(roll, start):
        cost = None
        for i in range(256):
            p = (i + roll) & 255
            if exact:
                d = (dec[None].astype(np.float32) - w16[:, p, None, None].astype(np.float32)).astype(np.float16)
                err = d.astype(np.float64) ** 2
            else:
                err = (dec[None].astype(np.float32) - x[:, p, None, None]) ** 2
            if cost is not None:
                err = err + cost[:, node_in].astype(err.dtype)     # single rounding = fused multiply-add
            err = err.astype(f)
            if cost is None and start is not None:
                err[np.broadcast_to(node_in[None], err.shape) != start[:, None, None]] = np.inf
            k = np.argmin(err, axis=1)                             # first minimum wins
            cost = np.take_along_axis(err, k[:, None], axis=1)[:, 0]
            back[:, p] = np.take_along_axis(np.broadcast_to(node_in[None], err.shape), k[:, None], axis=1)[:, 0]
        return cost

    if pinned is None:
        node = np.argmin(forward(128, None), axis=1)
        for i in range(255, 127, -1):                              # positions 127 .. 0
            node = back[rows, (i + 128) & 255, node].astype(np.int64)
        pinned = node
    pinned = np.asarray(pinned, np.int64)
    forward(0, pinned)
    states = np.zeros((n_t, 256), np.uint16)
    node = pinned
    for p in range(255, -1, -1):
        prev = back[rows, p, node].astype(np.int64)
        states[:, p] = (prev << bits) | node
        node = prev
    assert (node == pinned).all()
    return codebook_table(cb)[states], states


# ----------------------------------------------------------------------------------------------
# Encoder: a whole linear                                                                     (§5)
# ----------------------------------------------------------------------------------------------

def block_ldl(H: np.ndarray, b: int = 16) -> np.ndarray:
    """Unit block-lower-triangular L of H = L D L^T (b x b blocks), diagonal blocks zeroed."""
    k = H.shape[0]
    C = np.linalg.cholesky(H)
    L = np.empty_like(C)
    for i in range(0, k, b):
        L[:, i:i + b] = C[:, i:i + b] @ np.linalg.inv(C[i:i + b, i:i + b])
    for i in range(0, k, b):
        L[i:i + b, i:i + b] = 0.0
    return L


def scale_search(tiles, bits, cb, exact=False):
    """Global scale: coarse grid 0.1..1.9 step 0.2, fine grid of 5 at 0.075, parabolic refinement."""
    def mse(ts, s):
        v, _ = viterbi_encode(ts * np.float32(s), bits, cb, exact)
        return float(np.mean((v.astype(np.float64) / s - ts) ** 2))
    coarse = [0.1 + 0.2 * i for i in range(10)]
    sub = tiles[::3]
    c = coarse[int(np.argmin([mse(sub, s) for s in coarse]))]
    fine = [c + 0.075 * (i - 2) for i in range(5)]
    m = [mse(tiles, s) for s in fine]
    i = int(np.argmin(m))
    off = 0.0
    if 0 < i < 4:
        den = m[i - 1] - 2 * m[i] + m[i + 1]
        off = float(np.clip(0.5 * (m[i - 1] - m[i + 1]) / den, -0.5, 0.5)) if den > 0 else 0.0
    return max(fine[i] + off * 0.075, 0.01)


def quantize_linear(W, bits: int, cb: int, H=None, seed=0, sigma_reg=0.025, out_scales=True,
                    g_scale=None, exact=False):
    """Quantize W [K, N] (multiples of 128). H [K, K] = mean of x^T x, or None for the identity Hessian
    (then LDLQ degenerates to independent tiles). Returns the stored tensors."""
    rng = np.random.default_rng(seed)
    w = np.array(W, np.float64)
    k, n = w.shape
    assert k % 128 == 0 and n % 128 == 0
    r = 1 / np.sqrt(128.0)
    su = rng.choice([-1.0, 1.0], k)
    sv = rng.choice([-1.0, 1.0], n)
    # 1. output channel scales (rms per column, mean 1) and signs; rotate the output side
    rms = np.sqrt((w ** 2).mean(0))
    zero = rms < 1e-30
    if out_scales:
        sc = rms / rms.mean() if rms.mean() > 1e-30 else np.ones(n)
        sc[zero] = 0.1
        sv = sv * sc
    w = w / sv[None, :]
    sv = np.where(zero, 0.0, sv)
    w = fwht128(np.ascontiguousarray(w)) * r
    # 2. input channel scales (rms per row -> CODEBOOK_SCALE) and signs; rotate the input side
    rms = np.sqrt((w ** 2).mean(1))
    rms[rms < 1e-30] = 0.1
    signs = su.copy()
    su = su * rms / -CODEBOOK_SCALE
    w = w / su[:, None]
    w = fwht128(np.ascontiguousarray(w.T)).T * r
    # 3. global scale
    if g_scale is None:
        tk, tn = k // 16, n // 16
        t = tile_from_inner(w.astype(np.float32))
        d = np.arange(max(tk, tn))
        g_scale = scale_search(t[d % tk, d % tn], bits, cb, exact)
    w = w * g_scale
    su = su / g_scale
    # 4. LDLQ, from the last 16-row block to the first
    L = None
    if H is not None:
        Hd = np.array(H, np.float64)
        Hd[np.diag_indices(k)] += sigma_reg * np.mean(np.diag(Hd))
        Hd = fwht128(np.ascontiguousarray(Hd * signs[None, :])) * r
        Hd = fwht128(np.ascontiguousarray((Hd * signs[:, None]).T)).T * r
        L = block_ldl(Hd)
    wq = np.zeros_like(w)
    states = np.zeros((k // 16, n // 16, 256), np.uint16)
    for i in range(k - 16, -1, -16):
        rows = w[i:i + 16]
        if L is not None:
            rows = rows + L[i + 16:, i:i + 16].T @ (w[i + 16:] - wq[i + 16:])
        t = tile_from_inner(rows.astype(np.float32))[0]
        v, s = viterbi_encode(t, bits, cb, exact)
        states[i // 16] = s
        wq[i:i + 16] = v.astype(np.float64)[:, FLAT_TO_POS].reshape(n // 16, 16, 16).transpose(1, 0, 2).reshape(16, n)
    out = {"trellis": pack_states(states, bits), "suh": su.astype(np.float16), "svh": sv.astype(np.float16)}
    if cb == CB_MCG:
        out["mcg"] = np.array(MCG_MULT, np.uint32).view(np.int32)
    if cb == CB_MUL1:
        out["mul1"] = np.array(MUL1_MULT, np.uint32).view(np.int32)
    return out


# ----------------------------------------------------------------------------------------------
# Self-test
# ----------------------------------------------------------------------------------------------

def selftest(slow=True):
    rng = np.random.default_rng(1)
    assert HAD_SCALE.view(np.uint32) == 0x3DB504F3
    # permutation
    t = np.arange(256)
    assert (rowcol_to_pos(*pos_to_rowcol(t)) == t).all() and len(set(POS_TO_FLAT.tolist())) == 256
    # bitstream: both unpackers agree, pack is the inverse, every symbol stream is tail-biting
    for bits in range(1, 9):
        tr = rng.integers(0, 65536, (3, 5, 16 * bits), dtype=np.uint16).view(np.int16)
        s = unpack_states(tr)
        assert (s == unpack_states_words(tr)).all() and (pack_states(s, bits) == tr).all()
        node_out, node_in = s & ((1 << (16 - bits)) - 1), s >> bits
        assert (np.roll(node_out, 1, axis=-1) == node_in).all()
    # codebooks
    stats = {0: 1.2437, 1: 1.2441, 2: 1.0003}
    for cb in (0, 1, 2):
        v = codebook_table(cb).astype(np.float64)
        assert abs(v.std() - stats[cb]) < 1e-3, (cb, v.std())
        print(f"codebook {cb}: mean {v.mean():+.6f} std {v.std():.6f} min {v.min():+.4f} max {v.max():+.4f} distinct {len(np.unique(v))}")
    # Hadamard
    Hm = hadamard_matrix()
    x = rng.standard_normal((4, 256))
    ref = np.concatenate([x[:, :128] @ Hm, x[:, 128:] @ Hm], axis=1)
    assert np.allclose(fwht128(x), ref)
    # signs
    sg = rng.choice([-1, 1], 64).astype(np.float16)
    assert (unpack_signs(pack_signs(sg)) == sg).all()
    # linear == x @ W, and tensor-parallel slices add up / concatenate
    k, n, bits = 512, 256, 3
    T = {"trellis": rng.integers(0, 65536, (k // 16, n // 16, 16 * bits), dtype=np.uint16).view(np.int16),
         "suh": (rng.standard_normal(k) * .02).astype(np.float16), "svh": rng.standard_normal(n).astype(np.float16)}
    X = rng.standard_normal((3, k)).astype(np.float16)
    for cb in (0, 1, 2):
        y64 = X.astype(np.float64) @ dequant_weight(T["trellis"], T["suh"], T["svh"], cb)
        y = linear_forward(X, T["trellis"], T["suh"], T["svh"], cb, out_fp32=True)
        err = np.abs(y - y64).max() / np.abs(y64).std()
        assert err < 5e-3, err
        cols = [tp_slice(T, r, 2, "col") for r in range(2)]
        yc = np.concatenate([linear_forward(X, c["trellis"], c["suh"], c["svh"], cb, True) for c in cols], 1)
        rows = [tp_slice(T, r, 2, "row") for r in range(2)]
        yr = sum(linear_forward(X[:, r * 256:r * 256 + 256], c["trellis"], c["suh"], c["svh"], cb, True) for r, c in enumerate(rows))
        assert np.array_equal(yc, y) and np.abs(yr - y).max() / np.abs(y).std() < 1e-4
    yi = linear_forward_int8_mul1(X, T["trellis"], T["suh"], T["svh"])
    y = linear_forward(X, T["trellis"], T["suh"], T["svh"], 2, out_fp32=True)
    print("int8 mul1 vs fp16: relative rms", float(np.sqrt(np.mean((yi - y) ** 2)) / y.std()))
    # Viterbi: a valid stream is encoded without loss
    for bits, cb in ((8, 2), (4, 1), (2, 0)):
        st = symbols_to_states(rng.integers(0, 1 << bits, (2, 256)), bits)
        v, s = viterbi_encode(codebook_table(cb)[st].astype(np.float32), bits, cb)
        assert (v == codebook_table(cb)[st]).all()
    if slow:
        W = rng.standard_normal((128, 128)) * 0.05 * np.exp(rng.standard_normal(128))[None, :] * .3
        A = rng.standard_normal((256, 128)) @ (np.eye(128) + 0.3 * rng.standard_normal((128, 128)) / 11)
        Hs = A.T @ A / 256
        g = None
        for name, hh in (("identity", None), ("LDLQ", Hs)):
            q = quantize_linear(W, 4, CB_MUL1, H=hh, g_scale=g)
            g = 0.75                                               # near the searched optimum; saves time
            D = dequant_weight(q["trellis"], q["suh"], q["svh"], codebook_of(q)) - W
            print(f"quantize 4 bpw {name:8s}: nmse {(D**2).mean()/(W**2).mean():.5f}  "
                  f"proxy {np.trace(D.T@Hs@D)/np.trace(W.T@Hs@W):.5f}")
    print("self-test passed")


if __name__ == "__main__":
    selftest("--fast" not in sys.argv)
