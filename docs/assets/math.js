// Mathematics is set by KaTeX, which lies beside the pages: nothing comes from the network.
document.addEventListener("DOMContentLoaded", function () {
  for (const element of document.querySelectorAll(".arithmatex")) {
    renderMathInElement(element, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
    });
  }
});
