"""Prompts: the paper's words, one text for training and evaluation, and templates that TRL can use as they are."""

import pytest

from sage_rlvr.errors import UserError
from sage_rlvr.tasks import (
    FORMATS,
    PAPER_CHAT_TEMPLATE,
    Problem,
    PromptFormat,
    chat_template,
    generate_ltr,
    get_format,
    render,
    rows,
    sft_rows,
    to_messages,
)
from sage_rlvr.tasks.prompts import register_format

SYSTEM = (  # METHOD section 6, word for word
    "You are given a problem. Think about the problem and provide your working out. Place it between <start_working_out> "
    "and <end_working_out>. Then, provide your solution between <SOLUTION> and </SOLUTION>."
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (  # as Gemma's
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + CHATML
)
PROBLEM = Problem("p-1", "amc23", "What is {x} if $x^{2}=4$ and x > 0?", "2")


def tokenizer(template=None, bos=False):
    """A real tokenizer, made here: characters, with EOS and, if asked, a BOS that it adds by itself."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = {c: i for i, c in enumerate(["<s>", "</s>", "[U]", *map(chr, range(10, 127))])}
    inner = Tokenizer(models.WordLevel(alphabet, unk_token="[U]"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    if bos:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    out = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    out.chat_template = template
    return out


def test_the_paper_format_is_the_papers():
    paper = get_format("paper")
    assert paper.system == SYSTEM
    assert paper.prefix == "<start_working_out>"
    assert paper.stop == ("</SOLUTION>",)
    assert set(FORMATS) >= {"paper", "boxed", "plain"}
    assert "\\boxed{}" in get_format("boxed").system
    assert get_format("plain").system is None
    assert [FORMATS[f].fallback for f in ("paper", "boxed", "plain")] == [False, False, True]


def test_messages_and_braces():
    assert to_messages(PROBLEM, "paper") == [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": PROBLEM.question},
    ]
    assert to_messages(PROBLEM, "plain") == [{"role": "user", "content": PROBLEM.question}]


def test_the_text_without_a_tokenizer():
    assert render(PROBLEM, "paper") == f"{SYSTEM}\n\n{PROBLEM.question}\n\n<start_working_out>"
    assert render(PROBLEM, "plain") == PROBLEM.question


def test_a_base_model_gets_the_papers_template():
    base = tokenizer()
    text = render(PROBLEM, "paper", base)
    assert text == f"{SYSTEM}</s>{PROBLEM.question}<start_working_out>"
    assert chat_template(base, "paper") == PAPER_CHAT_TEMPLATE
    assert render(PROBLEM, "plain", base) == PROBLEM.question
    assert render(PROBLEM, "boxed", base).endswith(PROBLEM.question)  # no working-out tag from another format


@pytest.mark.parametrize("name", ["paper", "boxed", "plain"])
@pytest.mark.parametrize("template", [None, CHATML, PAPER_CHAT_TEMPLATE])
def test_training_and_evaluation_see_one_text(name, template):
    """TRL applies the tokenizer's template with add_generation_prompt=True; evaluation renders. The same, also when set twice."""
    tok = tokenizer(template)
    evaluation = render(PROBLEM, name, tok)
    for _ in range(2):
        tok.chat_template = chat_template(tok, name)
    training = tok.apply_chat_template(rows([PROBLEM], name)[0]["prompt"], add_generation_prompt=True, tokenize=False)
    assert training == evaluation == render(PROBLEM, name, tok)
    assert training.endswith("<start_working_out>") == (name == "paper")
    assert training.count(PROBLEM.question) == 1


def test_a_template_can_change_format():
    tok = tokenizer(CHATML)
    tok.chat_template = chat_template(tok, "paper")
    assert chat_template(tok, "boxed") == CHATML


def test_rows_for_trl():
    row = rows([PROBLEM], "boxed")[0]
    assert row == {"prompt": to_messages(PROBLEM, "boxed"), "answer": "2", "task": "amc23", "problem": "p-1"}
    text = rows([PROBLEM], "paper", conversational=False)[0]["prompt"]
    assert text == render(PROBLEM, "paper")


def test_string_rows_have_one_bos():
    with_bos = "{{ bos_token }}" + CHATML
    tok = tokenizer(with_bos, bos=True)
    text = rows([PROBLEM], "paper", tok, conversational=False)[0]["prompt"]
    assert tok(text)["input_ids"].count(0) == 1
    plain = tokenizer(with_bos)  # adds none by itself, so the template's must stay
    assert plain(rows([PROBLEM], "paper", plain, conversational=False)[0]["prompt"])["input_ids"].count(0) == 1


@pytest.mark.parametrize("name", ["paper", "boxed", "plain"])
@pytest.mark.parametrize("template", [None, "{{ bos_token }}" + CHATML])
def test_a_tokenizer_that_adds_bos_gets_one_everywhere(name, template):
    """Ids as each user makes them: TRL, evaluation and scoring, strings for TRL, SFT (prompt and whole)."""
    tok = tokenizer(template, bos=True)
    evaluation = tok(render(PROBLEM, name, tok), add_special_tokens=False)["input_ids"]
    string = tok(rows([PROBLEM], name, tok, conversational=False)[0]["prompt"])["input_ids"]
    for _ in range(2):
        tok.chat_template = chat_template(tok, name)
    messages = to_messages(PROBLEM, name)
    training = tok.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)[
        "input_ids"
    ]
    demonstration = [*messages, {"role": "assistant", "content": get_format(name).prefix + "2"}]
    whole = tok.apply_chat_template(demonstration, tokenize=True, return_dict=True)["input_ids"]
    again = tok(render(PROBLEM, name, tok), add_special_tokens=False)["input_ids"]
    assert training == evaluation == string == again
    assert [ids[0] for ids in (training, whole)] == [0, 0]
    assert [ids.count(0) for ids in (training, whole)] == [1, 1]


@pytest.mark.parametrize("name", ["paper", "boxed"])
def test_a_template_that_refuses_a_system_turn(name):
    """Training sets the template and leaves rendering to TRL, so that setting it has to refuse too."""
    tok = tokenizer(NO_SYSTEM)
    for call in (lambda: render(PROBLEM, name, tok), lambda: chat_template(tok, name)):
        with pytest.raises(UserError, match=r"System role not supported.*--prompt_format plain"):
            call()
    tok.chat_template = chat_template(tok, "plain")  # the way out
    assert PROBLEM.question in render(PROBLEM, "plain", tok)


@pytest.mark.parametrize("template", ["{% for m in messages %}", "{{ nothing.here }}"])
@pytest.mark.parametrize("name", ["paper", "plain"])
def test_a_template_that_is_broken(name, template):
    for call in (lambda: render(PROBLEM, name, tokenizer(template)), lambda: chat_template(tokenizer(template), name)):
        with pytest.raises(UserError, match="fix the chat template"):
            call()


LOOP = "{% for i in range(99999) %}"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (LOOP * 4 + "{% endfor %}" * 4, "has not ended after 1 s"),
        (LOOP * 2 + "{{ 'a' * 1000 }}" + "{% endfor %}" * 2, "(fills the memory|has not ended)"),
        ("{{ 'a' * 10000000000 }}", "fills the memory"),
        ("{{ 'a' * 20000000 }}", "writes more than 10,000,000 characters"),
        ("{{ range(10 ** 10) }}", "Range too big"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth"),
    ],
)
def test_a_template_without_end_is_a_sentence(template, said, monkeypatch):
    """It may hang on a turn, or fill gigabytes: neither here."""
    monkeypatch.setattr("sage_rlvr.tasks.endless.CPU_S", 1)
    with pytest.raises(UserError, match=f"cannot render prompt format 'plain' .*{said}.*fix the chat template"):
        chat_template(tokenizer(template), "plain")


def test_a_template_is_tried_once(monkeypatch):
    tried = []
    monkeypatch.setattr("sage_rlvr.tasks.prompts._ENDS", set())
    monkeypatch.setattr("sage_rlvr.tasks.prompts.why_endless", lambda render: tried.append(render()))
    own = tokenizer(CHATML)
    own.chat_template = chat_template(own, "plain")
    assert render(PROBLEM, "plain", own) == render(PROBLEM, "plain", own)
    assert len(tried) == 1


def test_sft_rows_in_the_papers_format():
    p = Problem(
        "s-1", "openmathreasoning-mini", "1+1?", "2", {"generated_solution": "<think>\nOne and {one}.\n</think>"}
    )
    row = sft_rows([p])[0]
    text = "<start_working_out>One and {one}.<end_working_out><SOLUTION>2</SOLUTION>"
    assert row["prompt"] == to_messages(p, "paper")
    assert row["completion"] == [{"role": "assistant", "content": text}]
    assert sft_rows([p], "boxed")[0]["completion"][0]["content"].endswith("\\boxed{2}")
    with pytest.raises(UserError, match="no worked solution"):
        sft_rows([PROBLEM])


def test_sft_prompt_is_the_beginning_of_prompt_and_completion():
    """What TRL's SFTTrainer relies on, for a base model's template: the prompt's text begins the whole's."""
    p = Problem("s-1", "openmathreasoning-mini", "1+1?", "2", {"generated_solution": "w"})
    tok = tokenizer()
    tok.chat_template = chat_template(tok, "paper")
    row = sft_rows([p])[0]
    prompt = tok.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
    whole = tok.apply_chat_template(row["prompt"] + row["completion"], tokenize=False)
    assert whole == prompt + "w<end_working_out><SOLUTION>2</SOLUTION></s>"


def test_a_format_of_ones_own_may_use_meta():
    digits = PromptFormat("digits", user="{numbers} = {target}:")
    p = generate_ltr(1, seed=0)[0]
    assert render(p, digits) == f"{' '.join(map(str, p.meta['numbers']))} = {p.meta['target']}:"
    with pytest.raises(UserError, match="numbers"):
        render(PROBLEM, digits)
    with pytest.raises(UserError, match="registered already"):
        register_format(PromptFormat("paper"))
    with pytest.raises(UserError, match="paper"):
        get_format("papers")
