"""Every reward that ships, on the ways in which answers are really written."""

import re
from typing import Any

import pytest

from pipeline.errors import DataError
from pipeline.learning.rewards.answers import (
    boxed,
    boxed_answer,
    chosen_letter,
    exact_match,
    final_number,
    gsm8k,
    last_boxed,
    vader,
)
from pipeline.learning.rewards.math_verify import math_verify, parsed_answer


def conversation(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_gsm8k() -> None:
    solution = "She sold 48/2 = 24.\n#### 1,072"
    given = ["#### 1072", "the answer is $1,072.00", "1073", "I do not know", "#### 1072 dollars"]
    assert gsm8k(completions=given, solution=[solution] * 5, prompts=given) == [1, 1, 0, 0, 1]
    assert gsm8k(completions=["5"], solution=["no number at all"]) == [None]
    assert gsm8k(completions=["1500000", "1", "1.5e6"], solution=["1.5e6"] * 3) == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a_{b_{c}}}", "a_{b_{c}}"),
        (r"\fbox{x}", "x"),
        (r"it is $\boxed 17$.", "17"),
        (r"\boxed{}", ""),
        (r"\boxed{1} then cut \boxed{2", None),
        ("nothing", None),
        (r"\boxed{", None),
        (r"\boxed{\boxed{3}}", "3"),
    ],
)
def test_the_last_box(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside


def test_boxed() -> None:
    given = [r"\boxed{\dfrac{1}{2}}", r"\boxed{ \frac{1}{2}. }", r"\boxed{0.5}", r"\frac{1}{2}"]
    for solution in (r"\frac{1}{2}", r"thus \boxed{\frac{1}{2}}"):
        assert boxed(completions=given, solution=[solution] * 4) == [1, 1, 0, 0]
    assert boxed(completions=[conversation(r"\boxed{3}")], solution=["3"]) == [1]
    assert boxed(completions=[r"\boxed{\text{E}}", r"\boxed{\textbf{E}}"], solution=["E", r"\text{E}"]) == [1, 1]
    assert boxed(completions=[r"\boxed{5}", "5"], solution=['["5"]'] * 2) == [1, 0]
    assert boxed(completions=[r"\boxed{2  1/2}", r"\boxed{21 / 2}"], solution=["21/2"] * 2) == [0, 1]
    assert boxed_answer(r"\boxed{}") is None


def test_one_answer_is_one_vote_however_it_is_written() -> None:
    pytest.importorskip("math_verify")
    assert parsed_answer("1/2") == parsed_answer(r"$\frac{1}{2}$") == "1/2"
    assert parsed_answer("no idea") is None


def test_sentiment() -> None:
    pytest.importorskip("vaderSentiment")
    given: dict[str, Any] = {
        "prompts": ["Awful. ", ""],
        "completions": ["It was wonderful!", "The table is brown."],
    }
    good, neutral = vader(**given)
    assert good is not None
    assert 0.5 < good <= 1
    assert neutral == 0
    assert vader(**given, unit=True) == [(good + 1) / 2, 0.5]
    whole = vader(**given, with_prompt=True)[0]
    assert whole is not None
    assert whole < good


@pytest.mark.parametrize("verifier", [exact_match, gsm8k, boxed, math_verify], ids=lambda one: one.__name__)
@pytest.mark.parametrize(("odd", "found"), [(["7"], "a list"), ({"a": "7"}, "a dict"), (True, "true")])
def test_nothing_is_compared_with_what_is_neither_text_nor_number(verifier: Any, odd: Any, found: str) -> None:
    said = f"'{verifier.__name__}' .*'solution', which must be text or a number, found {found};"
    with pytest.raises(DataError, match=said):
        verifier(completions=["True", "7"], solution=[odd, "7"])


@pytest.mark.parametrize(
    ("solution", "right", "wrong"),
    [
        (r"3\sqrt{13}", [r"\boxed{3\sqrt{13}}", r"$3\sqrt{13}$", r"3\sqrt{13}"], [r"\boxed{3}", "13"]),
        (r"2^{10}", [r"\boxed{1024}", "1024"], [r"\boxed{2}", "10"]),
        ("3*sqrt(13)", [r"\boxed{3\sqrt{13}}"], ["3"]),
        ("2 1/2", [r"\boxed{2\frac{1}{2}}", r"\boxed{\frac52}", "2.5"], ["2", "1"]),
        ("1.5e6", [r"\boxed{1500000}"], ["1.5"]),
        ("8,000", [r"\boxed{8000}", r"\boxed{8{,}000}", r"\boxed{8\,000}", "8 000"], ["8"]),
        (r"50\%", [r"\boxed{50\%}", r"\boxed{50}", "50 percent"], ["5"]),
        (r"\text{(C)}", [r"\boxed{C}", r"\boxed{\text{(C)}}", r"\boxed{\textbf{(C)}}"], [r"\boxed{B}"]),
        (r"5 \text{ cm}", [r"\boxed{5}", r"\boxed{5\text{ cm}}"], [r"\boxed{50}"]),
        ("18 dollars", [r"\boxed{18}", r"\boxed{\$18}"], [r"\boxed{1}"]),
        (r"90^\circ", [r"\boxed{90}", "90°"], [r"\boxed{9}"]),
        ("x=5", [r"\boxed{5}", r"\boxed{x = 5}"], [r"\boxed{x=6}"]),
        ("y = 2x+3", [r"\boxed{y=2x+3}", r"\boxed{3+2x}"], ["2"]),
        ("[0,1)", [r"\boxed{[0,1)}"], [r"\boxed{[0,1]}", "0"]),
        (r"\{1,2\}", [r"\boxed{\{2,1\}}", r"\boxed{1} and \boxed{2}", r"\boxed{2}, \boxed{1}"], [r"\boxed{1}"]),
        ("3 or 5", [r"\boxed{3 \text{ or } 5}"], [r"\boxed{3}", "5"]),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", [r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}"], [r"\boxed{1}"]),
        ("no solution", [r"\boxed{\text{no solution}}"], [r"\boxed{0}"]),
        ("12:00", [r"\boxed{12:00}"], [r"\boxed{1:00}"]),  # as math-verify's tests have it
        (r"0.\overline{3}", [r"\boxed{0.\overline{3}}", r"\boxed{\frac13}"], ["0", r"\boxed{0.3}"]),
        ("So $x=3$, and thus the sum is \\boxed{4}.", ["4"], ["3"]),
        ("6 and 1 make 7\n#### 7", [r"\boxed{7}"], ["6"]),
        ("The final answer is 10,455. I hope it is correct.", ["10455"], ["10"]),
        # What the parser does not understand is compared as text, and no number taken out of it.
        (r"1, 2, \ldots, n", [r"\boxed{1, 2, \ldots, n}"], [r"\boxed{1, 3, \ldots, 2n-1}", "1"]),
        ("f(x) = 0", [r"\boxed{f(x) = 0}"], [r"\boxed{\forall x>0, f(x) = 0}"]),
        # Signs and digits of full width, units and words without spaces (as of Chinese).
        ("12", ["\\boxed{\uff11\uff12}", "\u7b54\u6848\u662f12\u3002", "\u7b54\u6848\uff1a12", "12\u5143"], []),
        ("12", [], ["\uff11"]),
        ("(1,2)", ["\\boxed{\uff081\uff0c2\uff09}"], ["\\boxed{\uff082\uff0c1\uff09}"]),
        ("-4", ["\\boxed{\u22124}", "\\boxed{\u20134}"], ["4"]),
        # Beside an answer: a word, emphasis, currencies, tags, marks.
        ("42", ["Therefore 42", "so 42.", "= 42", "approximately 42"], ["so 43", r"so \frac42"]),
        ("42", ["**42**", "*42*", "`42`", "**Answer**: 42", "**$42**", "\\boxed{\u20ac42}"], ["**4**"]),
        ("42", ["#### 42", "1\n#### 42 dollars", "#### The answer is 42"], ["#### 4", "#### 1. Count 42\n5"]),
        (r"\frac{3}{4}", [r"The answer is \frac{3}{4}.", r"#### \frac{3}{4}", "The answer is 0.75."], ["3", "4"]),
        ("5", ["The answer is 5.\nI am sure that the answer is right.", "The answer is 5 (see 7)."], []),
        ("5", [], ["Answer: 7"]),
        ("C", ["The answer is C.", "**C**", "Answer: (C)", "C) 17", r"\boxed{\textbf{(C)}\ 17}"], []),
        ("C", [], ["D) C", "Answer: D"]),
        ("C", [], [r"\boxed{A or B or C}", r"\boxed{(C) \cup (D)}"]),
        (r"\textbf{(C)}\ 17", [r"\boxed{C}", r"\boxed{(C)}"], [r"\boxed{D}"]),
        # Lists that were written as text.
        ("['5', '6']", [r"\boxed{5, 6}", r"\boxed{6, 5}"], [r"\boxed{5}", r"\boxed{[5, 6]}"]),
        (r'["\\frac{1}{2}"]', [r"\boxed{0.5}"], [r"\boxed{1}"]),
        # What math-verify takes for one.
        ("1.6e-19", [r"\boxed{1.6 \times 10^{-19}}", "1.6e-19"], [r"\boxed{9.1e-31}", "0"]),
        (r"\frac{1}{2004!}", [r"\boxed{\frac{1}{2004!}}"], [r"\boxed{\frac{1}{2006!}}"]),
        ("4343_6", [r"\boxed{4343_6}", r"\boxed{4343_{6}}"], [r"\boxed{4343_7}"]),
        (r"1 - \frac{1}{\mathrm{e}}", [r"\boxed{1 - \frac{1}{e}}"], [r"\boxed{1 + \frac{1}{e}}"]),
        (r"\emptyset", [r"\boxed{\varnothing}", r"\boxed{\{\}}"], [r"\boxed{0}"]),
        ("5", [r"\boxed{5~\mathrm{cm}^2}"], [r"\boxed{5^2}"]),
        # Rates and powers of units, days and times, and mathematics without LaTeX.
        ("9.8 m/s^2", [r"\boxed{9.8}", r"\boxed{9.8\text{ m/s}^2}"], [r"\boxed{9.8 x}", r"\boxed{8}"]),
        ("5 cm\u00b2", [r"\boxed{5}", r"\boxed{5\text{ cm}^2}"], [r"\boxed{25}", r"\boxed{5\text{ m}^2}"]),
        ("January 5", [r"\boxed{\text{January 5}}", r"\boxed{January 5}"], ["5", r"\boxed{\text{July 5}}"]),
        ("2\u221a3", [r"\boxed{2\sqrt{3}}", r"\boxed{2\sqrt3}", "The answer is 2\u221a3."], ["2", "3"]),
        ("3 \u00d7 10\u207b\u00b2", [r"\boxed{0.03}", r"\boxed{3\times 10^{-2}}"], ["3", "10"]),
        ("3\u00bd", [r"\boxed{3.5}", r"\boxed{\frac72}"], ["3", r"\boxed{\frac12}"]),
        ("\u2212\u221e", [r"\boxed{-\infty}"], [r"\boxed{\infty}"]),
        # How it looks, what a value is called, arguments without braces.
        ("10", [r"\boxed{\bf 10}", r"\boxed{\approx 10}", r"\boxed{\frac{20}{2} \approx 10.0}"], []),
        ("10", [], [r"\boxed{\bf 11}", r"\boxed{\text{10 days and }3\text{ hours}}"]),
        ("10", [r"\boxed{\text{The answer is } 10}", r"\boxed{\mathbb{E}[X] = 10}", r"\boxed{10;}"], []),
        ("0.3", [r"\boxed{P(X>2)=0.3}"], [r"\boxed{P(X>0.3)=2}"]),
        ("(1,2)", [r"\boxed{(1,2)}", r"\boxed{(x, y) = (1, 2)}"], [r"\boxed{(2,1)}", r"\boxed{[1,2]}"]),
        (r"\sqrt{\frac{\pi}{3}}", [r"\boxed{\sqrt\frac{\pi}{3}}", r"\boxed{\sqrt{\frac\pi3}}"], []),
        ("25\u00b0C", [r"\boxed{25}", r"\boxed{25^\circ\text{C}}"], [r"\boxed{25C}"]),
        # What no mathematics is: letters whose order counts, ratios, days, and what is not understood at all.
        ("SAS", [r"\boxed{\text{SAS}}"], [r"\boxed{SSA}"]),
        (r"\angle ABC", [r"\boxed{\angle  ABC}"], [r"\boxed{\angle ACB}"]),
        ("3 1 2", [r"\boxed{3 1  2}"], [r"\boxed{1 2 3}", "6"]),
        ("0x1F", [r"\boxed{0x1F}"], [r"\boxed{0x2F}", "0"]),
        (r"x \neq 2", [r"\boxed{x \ne 2}"], [r"\boxed{x \neq 3}"]),
        ("3, 5", [r"$x=\boxed{3}$ or $x=\boxed{5}$"], [r"$x=\boxed{3}$, $x=\boxed{4}$"]),
        ("B and D", [r"\boxed{B, D}", r"\boxed{(D), (B)}"], [r"\boxed{B}", r"\boxed{(B) and (C)}"]),
        ("D", ["The correct option is **(D)**.", "The answer is option D", "\u6545\u9009D\u3002"], ["Option C"]),
        ("2024-01-05", [r"\boxed{2024-01-05}"], ["2018"]),
        ("3 hours 20 minutes", [r"\boxed{3\text{ hours }20\text{ minutes}}"], [r"\boxed{3}", r"\boxed{20}"]),
        (r"x \equiv 5 \pmod{7}", [r"\boxed{x\equiv 5\pmod{7}}"], [r"\boxed{x\equiv 4\pmod{7}}"]),
        # Times, what is denied, large numbers in words, sets by letters, and the imaginary unit.
        ("1:30", [r"\boxed{1:30}"], [r"\boxed{2:60}", r"\boxed{1:03}"]),
        ("1:2", [r"\boxed{2:4}", r"\boxed{\frac12}"], [r"\boxed{2:1}"]),
        ("5", [r"\boxed{5}, not 7"], ["not 5", "The answer is not 5.", r"\boxed{not 5}", "It can't be 5."]),
        ("2.5 million", ["2500000", r"\boxed{\$2.5 \text{ million}}", r"\boxed{2.5 \times 10^6}"], []),
        ("2.5 million", [], [r"\boxed{2.5}"]),
        ("103", [r"\boxed{m+n = 100+3 = 103}", r"\boxed{100a+b=103}"], [r"\boxed{m+n=13}", r"\boxed{2x=103}"]),
        ("x+y=5", [], [r"\boxed{5}"]),
        ("27", [r"\boxed{(E) 27}", r"\boxed{\textbf{(E)}\ 27}"], [r"\boxed{(E) 28}", r"\boxed{(E)}"]),
        (r"4\pi", [r"\boxed{\pi(3+1)}"], [r"\boxed{\pi(3)}"]),
        ("2y(0)", [r"\boxed{y(0)+y(0)}"], [r"\boxed{0}", r"\boxed{2y}"]),
        ("13.6 eV", [r"\boxed{13.6\ \text{eV}}"], [r"\boxed{13.6 keV}"]),
        (r"A \cup B", [r"\boxed{A\cup B}", "A \u222a B"], [r"\boxed{B \cap A}", r"\boxed{A \cup C}"]),
        ("(-\u221e, 1) \u222a (2, \u221e)", [r"\boxed{(2,\infty)\cup(-\infty,1)}", "$x<1$ or $x>2$"], []),
        ("(-\u221e, 1) \u222a (2, \u221e)", [], ["(2, \u221e)"]),
        ("x>3", [r"\boxed{(3,\infty)}", "3 < x < \u221e", r"\boxed{\{x \mid x>3\}}"], ["[3, \u221e)", "3", "y>3"]),
        (r"x \in (0,2)", ["0 < x < 2", "(0, 2)", r"\boxed{|x-1|<1}"], [r"\boxed{0 \le x < 2}", "x > 0"]),
        ("x > 0", [r"\boxed{(0,\infty)}"], [r"\boxed{x^{1000} + x > 1}"]),  # which takes minutes to be solved
        (r"\{(1,3),(2,4)\}", [r"\boxed{\{(2,4),(1,3)\}}"], ["(2,3)", r"\boxed{\{(1,4),(2,3)\}}"]),
        ("9:45 a.m.", ["9:45", r"\boxed{9:45\,\text{AM}}"], ["9:45 p.m."]),
        (r"\ln 2", [r"\boxed{\log 2}", "ln 2", r"\boxed{\log_e 2}"], []),
        (r"\ln 2", [], [r"\boxed{\log_{10} 2}", r"\boxed{\log_2 2}"]),
        (r"\log 2", [r"\boxed{\ln 2}", r"\boxed{\lg 2}"], [r"\boxed{\log 3}"]),
        (r"\sin 30^\circ", [r"\boxed{\frac12}", r"\boxed{\sin(30^{\circ})}"], [r"\boxed{\sin 30}"]),
        ("yes", ["YES", r"\boxed{\text{Yes}}"], ["no"]),
        (r"\frac{1+i\sqrt3}{2}", [r"\boxed{e^{i\pi/3}}"], [r"\boxed{e^{-i\pi/3}}"]),
        (-1, [r"\boxed{e^{i\pi}}", r"\boxed{i^2}"], [r"\boxed{i}"]),
        # What prose says at its end, be it not called an answer: as a whole, not its first or last number.
        ("2", ["It is 2.", "It is 2 cm^2.", "Thus, x = 2.", "I get 2", "It's 2.", "=> 2", "\u2234 2"], []),
        ("2", [], ["It is 2\u221a3.", "It is 2 + i.", "It is 2x."]),
        ("-3", ["It is negative 3.", "minus 3", "It is - 3."], ["It is 3.", "5 minus 3 is 2"]),
        (r"2\sqrt{3}", ["It is 2 sqrt(3).", r"\boxed{sqrt(12)}"], ["It is 2.", "It is 3 sqrt(2)."]),
        ("4", [], ["It arrives at 4:00 p.m.", "It arrives at 4 p.m.", "It comes at 4:30."]),
        ("4", [], ["The ratio 4:3 holds."]),
        ("4:00 p.m.", ["It arrives at 4:00 p.m.", r"\boxed{4\text{ PM}}"], []),
        ("4:00 p.m.", [], ["It arrives at 4:00 a.m.", "4", "5 PM"]),
        ("A", ["The answer is (A) the cell.", "The answer is A. Others are wrong.", "The answer is A) $5$."], []),
        ("A", [], ["The answer is A) or B)", r"\boxed{(A) or (B)}", "The answer is (B) as A is 5."]),
        ("x=1, y=2", ["(1,2)", "y=2, x=1", "$(x,y)=(1,2)$"], [r"\boxed{(2,1)}", "$(x,y)=(2,1)$", "x=2, y=1"]),
        (r"1.36 \times 10^4", [r"\boxed{13600}", "13,600"], [r"\boxed{13601}", "1.36"]),
        (r"x \le -3 \text{ or } x > 5", [r"\boxed{x \leq -3 \cup x > 5}", r"\boxed{x \le -3 \lor x>5}"], []),
        (r"x \le -3 \text{ or } x > 5", [], [r"\boxed{x < -3 \cup x > 5}", r"\boxed{x \le -3}", "5"]),
        (r"\mathbb{R}", [r"\boxed{\mathbb R}", r"(-\infty,\infty)"], [r"\boxed{\mathbb Z}"]),
        (
            r"\pi (R^2 - r^2) h",
            [r"\boxed{\pi h(R-r)(R+r)}", r"The volume is $\pi h (R^2-r^2)$."],
            [r"\boxed{\pi(R^2-r^2)}", r"\boxed{\pi(r^2-R^2)h}", "0"],
        ),
        ("(a+3) cm", [r"\boxed{a + 3}", r"\boxed{(a+3)\text{ cm}}"], [r"\boxed{a+2}"]),
        (r"5\cos 3t", [r"\boxed{5\cos(3t)}"], [r"\boxed{5\cos 3}"]),
        (
            r"2\mathbf{i}-3\mathbf{j}",
            [r"\boxed{-3\mathbf{j}+2\mathbf{i}}"],
            [r"\boxed{2\mathbf{i}+3\mathbf{j}}", "2"],
        ),
        (r"n\text{ even}", [r"\boxed{n \text{ even}}"], [r"\boxed{n\text{ odd}}", r"\boxed{n}"]),
        (
            r"x=1\text{ m}, y=2\text{ m}",
            [r"\boxed{x=1, y=2}"],
            [r"\boxed{x=1\text{ m}, y=3\text{ m}}", r"\boxed{x=1}"],
        ),
        (r"v_{\text{max}}", [r"\boxed{v_{\mathrm{max}}}"], [r"\boxed{v_{\text{min}}}"]),
        (
            r"\frac{dy}{dx}=xy",
            [r"\boxed{\frac{dy}{dx}=yx}"],
            [r"\boxed{\frac{dy}{dx}=-xy}", r"\boxed{\frac{dx}{dy}=xy}"],
        ),
        (r"(1\,2\,3)(4\,5)", [r"\boxed{(1 2 3)(4 5)}"], [r"\boxed{(1\,3\,2)(4\,5)}", "120", r"\boxed{(1\,2\,3)}"]),
        ("AB=5, BC=12", [r"\boxed{BC=12, AB=5}"], [r"\boxed{12}", r"\boxed{AB=5, BC=13}"]),
        (r"\frac{\ln 2}{3}\text{ years}", [r"\boxed{\frac{\ln 2}{3}}"], [r"\boxed{\ln 2}"]),
        (r"A^T B", [r"\boxed{A^{\top}B}"], [r"\boxed{AB}"]),
        # As sets of problems and models write them.
        ("15\\mbox{ cm}^2", [r"\boxed{15}", r"\boxed{15\ \mathrm{cm^2}}", "15cm²"], [r"\boxed{15\text{ cm}^3}"]),
        (r"45 \mathrm{~km} / \mathrm{h}", [r"\boxed{45}", "45 km/h"], [r"\boxed{45\text{ m/s}}"]),
        ("1.22", ["1,22", r"\boxed{1,22}", "Soucis : 1,22 $ a.."], ["122", "1, 22"]),
        ("1,22", ["1.22", r"\boxed{22, 1}"], ["122"]),
        (
            r"\\left(\\frac{1}{5},\\frac{1}{6}\\right)",
            [r"\boxed{(\frac15, \frac16)}"],
            [r"\boxed{(\frac16, \frac15)}"],
        ),
        (
            r"\left[\begin{array}{ll}0 & 1 \\ 2 & 3\end{array}\right]",
            [r"\boxed{\begin{bmatrix}0&1\\2&3\end{bmatrix}}"],
            [r"\boxed{\begin{bmatrix}0&2\\1&3\end{bmatrix}}", "0"],
        ),
        (r"(3, \frac{\pi}{2})", [r"\boxed{(r,\theta)=(3, \pi/2)}"], [r"\boxed{(\theta,r)=(\pi/2, 3)}"]),
        (r"\frac{3}{56}", [r"\boxed{\frac{12}{224} = \frac{3}{56}}"], [r"\boxed{\frac{3}{56} = \frac{12}{225}}"]),
        (r"\lceil n/2 \rceil+1", [r"\boxed{1+\lceil\frac{n}{2}\rceil}"], [r"\boxed{\lfloor n/2\rfloor+1}"]),
        ("90^\\circ", [r"\boxed{90\degree}", r"\boxed{\mathbf{90}}", r"\boxed{\color{red}{90}}"], []),
        ("1.87e6", ["v = 1.87 x 10^6 m/s"], ["v = 1.87 x 10^5 m/s"]),
        ("4", [], ["The solution is $x != 4$", "The solution is $x <= 4$", "at least 4"]),
        ("9", ["她还剩9页没有看。", "所以,a=9", "所以还剩 **9** 页。"], ["答案不是9", "大于9", "至少9", "第9"]),
        ("1, -2", ["The solutions are $x = 1$ and $x = -2$."], ["The solutions are $x = 2$, $x = -2$."]),
        ("-2", ["We have $x=1$ and $y=2$, so $y - 4x = -2$."], ["The solutions are $x = 1$ and $x = -2$."]),
        (r"\sum_{n=0}^{9} x^n", [r"It equals $\sum_{n=0}^{9} x^n$."], [r"It equals $\sum_{n=1}^{9} x^n$."]),
        ("C", ["【答案】C", "正确选项是 C。"], ["【答案】D"]),
        (r"9^{9^{9}}", [r"\boxed{9^{9^9}}"], [r"\boxed{9^{9^{8}}}", r"\boxed{10^{100000}!}"]),
        (1e-05, [r"\boxed{0.00001}"], ["1"]),
    ],
)
def test_a_solution_is_read_wherever_it_stands(solution: Any, right: list[str], wrong: list[str]) -> None:
    pytest.importorskip("math_verify")
    given = [*right, *wrong]
    wanted = [1] * len(right) + [0] * len(wrong)
    assert math_verify(completions=given, solution=[solution] * len(given)) == wanted


_PIECE = re.compile(r"\\[A-Za-z]+|\\d|[A-Za-z]|[-+]")


@pytest.mark.parametrize(
    "answer",
    [
        r"\pi r^{2} h",
        r"\begin{pmatrix} -2 & 5 \\ 3x & 7 \end{pmatrix}",
        r"-3 < x \le 5",
        r"\log_{2} 3+\ln 5",
    ],
)
def test_without_a_piece_or_with_one_more_an_answer_is_another(answer: str) -> None:
    pytest.importorskip("math_verify")
    fixed = r"\\(?:left|right|text|begin|end|times|pm|equiv|pmod|le|frac|binom)\b|(?<=\{)pmatrix|(?<=\{ )cm"
    kept = [each.span() for each in re.finditer(fixed, answer)]
    near = {answer + r"\sqrt{3}", f"3{answer}"}
    for piece in _PIECE.finditer(answer):
        if any(start <= piece.start() < end for start, end in kept):
            continue
        head, tail = answer[: piece.start()], answer[piece.end() :]
        other = str((int(piece[0]) + 3) % 10) if piece[0].isdigit() else "w" if piece[0] not in "+-" else "*"
        near |= {f"{head} {tail}", f"{head}{piece[0]}{other} {tail}"}
    for each in sorted(near):
        assert math_verify(completions=[rf"\boxed{{{each}}}"], solution=[answer]) == [0], each
    assert math_verify(completions=[rf"\boxed{{{answer}}}"], solution=[answer]) == [1]


@pytest.mark.parametrize("verifier", [gsm8k, boxed, math_verify], ids=lambda one: one.__name__)
@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (r"\boxed{5}. Note that 7 is the next prime, and $2 + 3 = 8 - 3$.", 1),
        ("\\boxed{5}\n\nWait, \\boxed{", 0),
        (r"<think> perhaps \boxed{5}, no, that is not it, so", 0),
        (r"<think> \boxed{4}? </think> \boxed{5}", 1),
        (r"\boxed{4}, or is it? </think> \boxed{5}", 1),  # the template has begun the reasoning
        (r"<think> \boxed{5} </think> I do not know", 0),
        ("\\boxed{5}\n\nQuestion: Tom has 3 pens.\nAnswer: \\boxed{3}", 1),
        ("\\boxed{5}<|im_start|>user\nand \\boxed{6}", 1),
        (r"<think>4</think><answer>\boxed{5}</answer> or \boxed{6}", 1),
        (r"\boxed{5} <answer>\boxed{6}</answer>", 0),
        ("\\boxed{5}\n\n### Instruction:\n4 + 2?\n\\boxed{6}", 1),
        ("\\boxed{\uff15}", 1),
    ],
)
def test_where_the_answer_of_a_completion_is(verifier: Any, completion: str, score: float) -> None:
    if verifier is math_verify:
        pytest.importorskip("math_verify")
    assert verifier(completions=[completion], solution=["5"]) == [score]


@pytest.mark.parametrize(
    ("completion", "number"),
    [
        (r"She makes \boxed{18} dollars. That is for 2 weeks.", "18"),
        (r"\boxed{8{,}000}", "8000"),
        (r"\boxed{\$18.00}", "18"),
        ("\u0967\u096e", "18"),
        (r"\boxed{\text{The answer is 460}}", "460"),
        (r"\boxed{\frac{1}{2}}", None),
        ("She makes 18.\n#### 18\n\nQuestion: Tom has 3.\nAnswer: 5\n#### 5", "18"),
        ("#### Step 3: the total\nIt is 18.", "18"),  # headings of Markdown
        (r"\boxed{4} each, so #### 8", "8"),
        ("It is \N{MINUS SIGN}3.", "-3"),
        ("\uff11\uff0c\uff12\uff13\uff14", "1234"),
        ("1/2", None),
        ("half of it is .5", "0.5"),
        ("1e9999", "1"),
        ("<answer>18</answer> for 2 weeks", "18"),
    ],
)
def test_the_number_where_it_was_asked_for(completion: str, number: str | None) -> None:
    assert final_number(completion) == number


def test_a_solution_that_is_no_number_is_not_judged_by_numbers() -> None:
    for solution in (r"3\sqrt{13}", "1/2", r"\boxed{\frac12}"):
        assert gsm8k(completions=["13", "2"], solution=[solution] * 2) == [None, None]


@pytest.mark.parametrize("verifier", [exact_match, gsm8k, boxed, math_verify], ids=lambda one: one.__name__)
def test_missing_solutions_and_whole_numbers(verifier: Any) -> None:
    if verifier is math_verify:
        pytest.importorskip("math_verify")
    given = r"\boxed{42}" if verifier is boxed else "42"
    for missing in (None, float("nan"), "", " \n"):
        assert verifier(completions=[given], solution=[missing]) == [None]
    for there in (42, 42.0, "42"):
        assert verifier(completions=[given], solution=[there]) == [1]


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("Answer: A. Answer: C", "C"),
        ("The answer is (A). Hmm no. The answer is (C).", "C"),
        ("I thought the answer is A, but the answer is C.", "C"),
        ("(A) is correct. No, (C) is correct.", "C"),
        ("The answer is C. The other option is wrong.", "C"),
        ("The answer is A. No: the answer is B or C.", None),
        ("The best option is the one above, so the answer is: C", "C"),
        ("The answer is a tie.", None),
    ],
)
def test_the_last_letter_that_is_stated_counts(said: str, letter: str | None) -> None:
    assert chosen_letter(said) == letter
