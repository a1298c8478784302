"""What the sandbox image brings: each library works there, without a warning, and shows what it draws."""

import pytest

from support.cluster.callers import Session

LIBRARIES = {
    "numpy": "import numpy; print(numpy.ones(2).sum())",
    "pandas": "import pandas as pd; print(pd.DataFrame({'a': [1]}).style.to_html()[:6])",
    "scipy": "import scipy.stats; print(scipy.stats.norm.cdf(0))",
    "scikit-learn": (
        "from sklearn.linear_model import LinearRegression as L; print(L().fit([[1], [2]], [1, 2]).predict([[3]]))"
    ),
    "scikit-image": "from skimage import data, filters; print(filters.sobel(data.camera()).shape)",
    "openpyxl": (
        "import pandas as pd; pd.DataFrame({'a': [1]}).to_excel('a.xlsx'); print(pd.read_excel('a.xlsx').shape)"
    ),
    "pyarrow": (
        "import pandas as pd; pd.DataFrame({'a': [1]}).to_parquet('a.parquet'); print(pd.read_parquet('a.parquet'))"
    ),
    "reportlab": "from reportlab.pdfgen import canvas; c = canvas.Canvas('a.pdf'); c.showPage(); c.save(); print(1)",
    "requests": "import requests; print(requests.__version__)",
    "google-genai": "from google import genai; print(genai.Client(api_key='none').models is not None)",
    "all": (
        "import seaborn, sklearn, skimage, plotly, openpyxl, reportlab, pyarrow, requests, google.genai, scipy\n"
        "print('all')"
    ),
}
PICTURES = {
    "seaborn": "import seaborn as sns; sns.lineplot(x=[1, 2], y=[1, 4])",
    "matplotlib": "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()",
    "pillow": "from PIL import Image; Image.new('RGB', (7, 5)).show()",
}
JAVASCRIPT = {
    "require": "const { GoogleGenAI } = require('@google/genai'); console.log(typeof GoogleGenAI);",
    "import": "import { GoogleGenAI } from '@google/genai'; console.log(typeof GoogleGenAI);",
    "import()": "const { GoogleGenAI } = await import('@google/genai'); console.log(typeof GoogleGenAI);",
}


@pytest.mark.promise("writable-places")
@pytest.mark.parametrize("code", LIBRARIES.values(), ids=LIBRARIES)
async def test_library_works_without_a_warning(session: Session, sandbox: str, code: str) -> None:
    reply = await session.python(code, sandbox=sandbox)
    assert (reply["outcome"], reply["stderr"]) == ("ok", ""), reply
    assert reply["stdout"]


@pytest.mark.parametrize("context", [None, "c"])
@pytest.mark.parametrize("code", PICTURES.values(), ids=PICTURES)
async def test_picture_comes_back_once(session: Session, sandbox: str, code: str, context: str | None) -> None:
    arguments = {"code": code, "sandbox": sandbox, "context": context}
    answer = await session.client.call_tool("run_python_code", arguments)
    assert [part.type for part in answer.content] == ["text", "image"]
    assert answer.structured_content is not None
    assert answer.structured_content["stderr"] == ""


async def test_figure_of_plotly_is_kept_as_a_page_and_a_picture_of_it_is_told_to_be_impossible(
    session: Session, sandbox: str
) -> None:
    code = "import plotly.express as px\nfig = px.bar(x=[1, 2], y=[1, 2])\nfig.show()\nfig.to_image()"
    reply = await session.python(code, sandbox=sandbox)
    assert [shown["mime_type"] for shown in reply["displays"]] == ["text/plain"]
    assert [artifact["path"] for artifact in reply["artifacts"]][-1].endswith(".html")
    assert "a browser" in reply["hint"]


async def test_contexts_are_ipythons(session: Session, sandbox: str) -> None:
    reply = await session.python("%timeit -n 1 -r 1 pass\n!echo from the shell", context="c", sandbox=sandbox)
    assert (reply["outcome"], reply["stderr"]) == ("ok", ""), reply
    assert "per loop" in reply["stdout"]
    assert "from the shell\n" in reply["stdout"]


@pytest.mark.parametrize("code", JAVASCRIPT.values(), ids=JAVASCRIPT)
async def test_javascript_library_is_found_either_way(session: Session, sandbox: str, code: str) -> None:
    reply = await session.call("run_js_code", code=code, sandbox=sandbox)
    assert (reply["stdout"], reply["stderr"]) == ("function\n", ""), reply
