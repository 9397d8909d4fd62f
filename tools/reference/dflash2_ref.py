# SPDX-License-Identifier: Apache-2.0
"""DFlash2 drafter in numpy, fp32, one block at a time; equal to every draft
and accept count of tests/data/demo_golden.h5.

w: checkpoint name -> float32 array; c: config.json.
kv = context(w, c, taps)        taps [T, n_taps*H] = stream means after the layers target_layer_ids, concatenated
h  = block(w, c, kv, n, anchor, embed)   always block_size rows; uses context positions 0..n-1
d  = walk(w, c, h, head, anchor, K)      greedy path of K tokens
"""
import numpy as np

def rms(x, g, eps): return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * g

def rope(x, pos, theta):                                  # x [T, heads, d], rotate-half
    d = x.shape[-1]; f = pos[:, None].astype(np.float32) / theta ** (np.arange(0, d, 2, dtype=np.float32) / d)
    cos, sin = (np.concatenate([g, g], -1)[:, None] for g in (np.cos(f), np.sin(f)))
    return x * cos + np.concatenate([-x[..., d // 2:], x[..., :d // 2]], -1) * sin

def conv(x, dyn, base, group):                            # x [B, H], dyn [B, 2 taps, groups], base [2, H]
    prev = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    return sum((base[t] + np.repeat(dyn[:, t], group, -1)) * v for t, v in enumerate((x, prev)))

def context(w, c, taps):
    eps, theta, d, nkv = c["rms_norm_eps"], c["rope_parameters"]["rope_theta"], c["head_dim"], c["num_key_value_heads"]
    x, pos, out = rms(taps @ w["fc.weight"].T, w["hidden_norm.weight"], eps), np.arange(len(taps)), []
    for l in range(c["num_hidden_layers"]):
        p = f"layers.{l}.self_attn."
        k = rms((x @ w[p + "k_proj.weight"].T).reshape(-1, nkv, d), w[p + "k_norm.weight"], eps)
        out.append((rope(k, pos, theta), (x @ w[p + "v_proj.weight"].T).reshape(-1, nkv, d)))
    return out

def block(w, c, kv, n, anchor, embed):
    D = c["dflash_config"]; B, G = D["block_size"], D["conv_group_size"]
    eps, theta, d = c["rms_norm_eps"], c["rope_parameters"]["rope_theta"], c["head_dim"]
    nh, nkv, W = c["num_attention_heads"], c["num_key_value_heads"], c["sliding_window"]
    h, pos = embed[[anchor] + [D["mask_token_id"]] * (B - 1)].astype(np.float32), np.arange(n, n + B)
    for l in range(c["num_hidden_layers"]):
        P, p = f"layers.{l}.", f"layers.{l}.self_attn."
        x = rms(h, w[P + "input_layernorm.weight"], eps)
        dyn = (x @ w[P + "attention_conv.kernel_projection.weight"].T).reshape(B, 2, 2, -1)   # from x, before any conv
        y = conv(x, dyn[:, 0], w[P + "attention_conv.base_kernel"][0], G)
        q = rope(rms((y @ w[p + "q_proj.weight"].T).reshape(B, nh, d), w[p + "q_norm.weight"], eps), pos, theta)
        k = rope(rms((y @ w[p + "k_proj.weight"].T).reshape(B, nkv, d), w[p + "k_norm.weight"], eps), pos, theta)
        v = (y @ w[p + "v_proj.weight"].T).reshape(B, nkv, d)
        k, v = (np.repeat(np.concatenate([a[:n], b]), nh // nkv, 1) for a, b in ((kv[l][0], k), (kv[l][1], v)))
        s = np.einsum("qhd,khd->hqk", q, k) * d ** -0.5
        s = np.where(((pos[:, None] - np.arange(n + B)) < W)[None], s, -np.inf)               # bidirectional in the block
        s = np.exp(s - s.max(-1, keepdims=True)); s /= s.sum(-1, keepdims=True)
        a = np.einsum("hqk,khd->qhd", s, v).reshape(B, -1) @ w[p + "o_proj.weight"].T
        h = h + conv(a, dyn[:, 1], w[P + "attention_conv.base_kernel"][1], G)
        x = rms(h, w[P + "post_attention_layernorm.weight"], eps)
        dyn = (x @ w[P + "mlp_conv.kernel_projection.weight"].T).reshape(B, 2, 2, -1)
        y = conv(x, dyn[:, 0], w[P + "mlp_conv.base_kernel"][0], G)
        g = y @ w[P + "mlp.gate_proj.weight"].T
        y = (g / (1 + np.exp(-g)) * (y @ w[P + "mlp.up_proj.weight"].T)) @ w[P + "mlp.down_proj.weight"].T
        h = h + conv(y, dyn[:, 1], w[P + "mlp_conv.base_kernel"][1], G)
    return rms(h, w["norm.weight"], eps)

def walk(w, c, h, head, anchor, K):
    A, S, P = (w["candidate_selector." + s] for s in ("predecessor_codebook", "successor_codebook", "hidden_projection.weight"))
    out, prev = [], anchor
    for t in range(1, K + 1):
        u = head @ h[t]; top = np.argsort(-u, kind="stable")[:c["dflash_config"]["selector_top_k"]]
        prev = int(top[(u[top] + S[top] @ (A[prev] * (P @ h[t]))).argmax()]); out.append(prev)
    return out
