# SPDX-License-Identifier: Apache-2.0
"""Sampled runs of the program: the same file whatever the ranks and the batch, the same records
whatever K, order, shards and the number of samples; stop strings cut the text; seeds tell runs apart;
an OpenAI batch file in, batch output lines out.
Usage: sampled_files_test.py MPIRUN QUADRILLE SAME_RESULTS DATA_FOLDER"""

import sys
import tempfile

from demo_runs import DemoRuns


def sampling(samples=2, seed=5):
    return ["--temperature", "0.9", "--top-p", "0.95", "--repetition-penalty", "1.1", "--logprobs", "2",
            "--n", str(samples), "--seed", str(seed), "--max-new-tokens", "12"]


def records(case, *outs):
    """(source, prompt, sample): the record without what depends on K."""
    return {(o.get("source", 0), o["index"], o.get("sample", 0)):
            (o["tokens"], o["text"], o["finish_reason"], o["logprobs"]) for o in case.unpack(*outs)}


def check_runs(case, prompts):
    first = case.generate("first", prompts, 1, [*sampling(), "--k", "2"])
    expected = records(case, first)
    case.check("all records and samples are there", len(expected) == 2 * 6, str(sorted(expected)))
    case.check("samples differ", all(expected[s, p, 0] != expected[s, p, 1] for s, p, _ in expected))
    four = case.generate("four", prompts, 4, [*sampling(), "--k", "2", "--max-seqs", "3"])
    case.same_file("four ranks, small batches", first, four)
    for k in ("0", "7"):
        other = case.generate("k" + k, prompts, 2, [*sampling(), "--k", k])
        case.check("K = " + k, records(case, other) == expected)
    shards = [case.generate(f"shard{i}", prompts, 1, [*sampling(), "--k", "1", "--shard", f"{i}/3"])
              for i in range(3)]
    case.check("three shards are the whole", records(case, *shards) == expected)
    more = records(case, case.generate("more", prompts, 1, sampling(samples=3)))
    case.check("a third sample adds to the two",
               len(more) == 3 * 6 and all(more[key] == expected[key] for key in expected))
    other = records(case, case.generate("seed", prompts, 1, sampling(seed=6)))
    case.check("another seed, other tokens", all(other[key] != expected[key] for key in expected))
    rejection = [*sampling(), "--k", "3", "--accept", "rejection"]
    alone = case.generate("rejection", prompts, 1, [*rejection, "--max-seqs", "1"])
    case.same_file("rejection on two ranks", alone, case.generate("rejection2", prompts, 2, rejection))
    return expected


def check_stops(case, line, record):
    tokens, text, _, _ = record
    stop = text[len(text) // 2:len(text) // 2 + 3]
    stopped = dict(line, stop_text=["nowhere to be found", stop], temperature=0.9, top_p=0.95)
    out = case.generate("stop", [case.lines("stop.jsonl", [stopped])], 2, [*sampling(), "--k", "7"])
    found = records(case, out)[0, 0, 0]
    case.check("a stop string cuts the text", found[1] == text[:text.index(stop)] and found[2] == "stop",
               f"{found} {text!r} {stop!r}")
    case.check("and the tokens behind it", found[0] == tokens[:len(found[0])] and len(found[0]) < len(tokens))


def check_batch(case):
    """An OpenAI batch file in, lines of a batch output file out, on any number of ranks."""
    def request(name, body, url="/v1/chat/completions"):
        return {"custom_id": name, "method": "POST", "url": url, "body": dict(body, model="any")}

    chat = [{"role": "user", "content": "And God said, Let there be light"}]
    lines = [
        request("chat", {"messages": chat, "max_tokens": 9, "temperature": 0.8, "seed": 3, "logprobs": True,
                         "top_logprobs": 2, "ignore_eos": True}),
        request("plain", {"prompt": [5, 6, 7], "max_completion_tokens": 4, "ignore_eos": True}, "/v1/completions"),
        request("bad", {"prompt": [5, 4096]}, "/v1/completions"),
        request("stopped", {"messages": chat, "max_tokens": 60, "seed": 3, "temperature": 0.8, "stop": "e"})]
    prompts = [case.lines("batch.jsonl", lines)]
    outputs = []
    for ranks in (1, 2, 4):
        out = case.generate(f"batch{ranks}", prompts, ranks, ["--k", "3"])
        outputs.append(case.unpack(out, "--format", "openai", "--target", case.target))
        dates = [line["response"]["body"].pop("created") for line in outputs[-1] if line["response"]]
        case.check(f"lines are dated, {ranks} ranks", len(dates) == 3 and min(dates) > 1_700_000_000, str(dates))
    case.check("batch lines on two and four ranks", outputs[0] == outputs[1] == outputs[2])
    by_id = {line["custom_id"]: line for line in outputs[0]}
    case.check("a line for each request, in order", list(by_id) == ["chat", "plain", "bad", "stopped"], str(by_id))
    body = {name: line["response"]["body"] for name, line in by_id.items() if line["response"]}
    choice = {name: one["choices"][0] for name, one in body.items()}
    case.check("usage counts tokens", body["plain"]["usage"] ==
               {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, str(body["plain"]))
    case.check("a failed request has an error", by_id["bad"]["response"] is None and
               "token 4096" in by_id["bad"]["error"]["message"], str(by_id["bad"]))
    case.check("finish reasons", [choice[name]["finish_reason"] for name in ("chat", "plain", "stopped")] ==
               ["length", "length", "stop"], str(choice))
    content = choice["chat"]["logprobs"]["content"]
    case.check("logprobs spell the text", b"".join(bytes(one["bytes"]) for one in content).decode("utf-8", "replace")
               == choice["chat"]["message"]["content"] and len(content) == 9, str(choice["chat"]))
    case.check("two alternatives each", all(len(one["top_logprobs"]) == 2 for one in content))
    case.check("none where none were asked for", choice["plain"]["logprobs"] is None)
    # The same seed and prompt: the same text up to the first "e", which is among the nine tokens.
    case.check("a stop string is cut away", "e" in choice["chat"]["message"]["content"] and
               choice["stopped"]["message"]["content"] == choice["chat"]["message"]["content"].split("e")[0], str(choice))


def main():
    with tempfile.TemporaryDirectory() as folder:
        case = DemoRuns(folder)
        lines = [dict(line, ignore_eos=True) for line in case.demo_prompts()][:6]
        prompts = [case.lines("a.jsonl", lines[:4]), case.lines("b.jsonl", lines[4:])]
        expected = check_runs(case, prompts)
        check_stops(case, lines[0], expected[0, 0, 0])
        check_batch(case)
        return case.report()


sys.exit(main())
