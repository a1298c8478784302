"""What the sandbox image brings: each library works there, without a warning, and shows what it draws."""

from typing import Any

import pytest

from support.cluster.callers import Session

# One program, since imports are most of what each costs.
LIBRARIES = """
import pandas as pd, requests, scipy.stats
import numpy; print(numpy.ones(2).sum())
print(pd.DataFrame({'a': [1]}).style.to_html()[:6])
print(scipy.stats.norm.cdf(0))
from sklearn.linear_model import LinearRegression as L; print(L().fit([[1], [2]], [1, 2]).predict([[3]]).round())
from skimage import data, filters; print(filters.sobel(data.camera()).shape)
pd.DataFrame({'a': [1]}).to_excel('a.xlsx'); print(pd.read_excel('a.xlsx').shape)
pd.DataFrame({'a': [1]}).to_parquet('a.parquet'); print(pd.read_parquet('a.parquet').shape)
from reportlab.pdfgen import canvas; c = canvas.Canvas('a.pdf'); c.showPage(); c.save()
print(open('a.pdf', 'rb').read(4))
print(requests.__name__)
from google import genai; print(genai.Client(api_key='none').models is not None)
import plotly.express as px; fig = px.bar(x=[1, 2], y=[1, 2]); fig.show()
"""
PRINTED = [
    *("2.0", "<style", "0.5", "[3.]", "(512, 512)", "(1, 2)", "(1, 1)", "b'%PDF'", "requests", "True"),
]
PICTURES = """
import seaborn as sns, matplotlib.pyplot as plt
sns.lineplot(x=[1, 2], y=[1, 4])
plt.show()
for i in (1, 2):
    plt.figure(); plt.plot([i, 2 * i]); plt.title('販売 销售 판매')
plt.show()
from PIL import Image; Image.new('RGB', (7, 5)).show()
"""
JAVASCRIPT = """
import { GoogleGenAI } from '@google/genai';
const { GoogleGenAI: dynamic } = await import('@google/genai');
console.log(typeof GoogleGenAI, typeof dynamic);
"""
REQUIRE = "const { GoogleGenAI } = require('@google/genai'); console.log(typeof GoogleGenAI);"


async def run(session: Session, code: str, sandbox: str, **arguments: str) -> tuple[list[str], dict[str, Any]]:
    """Return the types of what a model gets, and the structured result."""
    answer = await session.client.call_tool("run_python_code", {"code": code, "sandbox": sandbox, **arguments})
    assert answer.structured_content is not None
    return [part.type for part in answer.content], answer.structured_content


@pytest.mark.promise("writable-places")
async def test_libraries_work_without_a_warning_and_each_picture_comes_back_once(
    session: Session, sandbox: str
) -> None:
    types, reply = await run(session, LIBRARIES + PICTURES, sandbox)
    assert (reply["outcome"], reply["stderr"]) == ("ok", ""), reply
    assert reply["stdout"].splitlines() == PRINTED
    assert types == ["text", *["image"] * 4]
    # A figure of plotly is a page.
    assert [shown["mime_type"] for shown in reply["displays"]] == ["text/plain", *["image/png"] * 4]
    assert [a["path"] for a in reply["artifacts"] if a["path"].endswith(".html")]


async def test_each_picture_comes_back_once_from_a_context(session: Session, sandbox: str) -> None:
    types, reply = await run(session, PICTURES, sandbox, context="c")
    assert (types, reply["stderr"]) == (["text", *["image"] * 4], ""), reply


async def test_picture_that_needs_a_browser_is_told_to_be_impossible(session: Session, sandbox: str) -> None:
    code = "import plotly.express as px; px.bar(x=[1]).to_image()"
    assert "a browser" in (await session.python(code, sandbox=sandbox, context="c"))["hint"]


async def test_contexts_are_ipythons(session: Session, sandbox: str) -> None:
    reply = await session.python("%timeit -n 1 -r 1 pass\n!echo from the shell", context="c", sandbox=sandbox)
    assert (reply["outcome"], reply["stderr"]) == ("ok", ""), reply
    assert "per loop" in reply["stdout"]
    assert "from the shell\n" in reply["stdout"]


async def test_javascript_library_is_found_either_way(session: Session, sandbox: str) -> None:
    for code, printed in ((JAVASCRIPT, "function function\n"), (REQUIRE, "function\n")):
        reply = await session.call("run_js_code", code=code, sandbox=sandbox)
        assert (reply["stdout"], reply["stderr"]) == (printed, ""), reply
