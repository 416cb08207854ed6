(function () {
  "use strict";
  var root = document.documentElement;
  var palette = JSON.parse(document.getElementById("palette").textContent);
  var button = document.getElementById("theme");
  var dark = window.matchMedia("(prefers-color-scheme: dark)");

  function remembered() {
    try { return window.localStorage.getItem("covey-theme"); } catch (error) { return null; }
  }
  function remember(theme) {
    try { window.localStorage.setItem("covey-theme", theme); } catch (error) { return; }
  }
  function isDark() {
    var chosen = root.getAttribute("data-theme");
    return chosen ? chosen === "dark" : dark.matches;
  }
  function colour(name) {
    return window.getComputedStyle(root).getPropertyValue(name).trim();
  }
  // The figures' colours are those of a light page; typed arrays are left as they are.
  function recoloured(value) {
    if (typeof value === "string") {
      if (palette[value]) { return palette[value]; }
      return value.replace("rgba(31,95,168,", "rgba(127,179,238,");
    }
    if (Array.isArray(value)) { return value.map(recoloured); }
    if (value && typeof value === "object") {
      var copy = {};
      Object.keys(value).forEach(function (key) {
        copy[key] = key === "bdata" ? value[key] : recoloured(value[key]);
      });
      return copy;
    }
    return value;
  }
  function dressed(figure, narrow) {
    var made = isDark() ? recoloured(figure) : JSON.parse(JSON.stringify(figure));
    var layout = made.layout;
    layout.font = Object.assign({}, layout.font, {color: colour("--text"), size: narrow ? 11 : 13});
    layout.hoverlabel = {bgcolor: colour("--soft"), bordercolor: colour("--muted"),
      font: {color: colour("--text")}, namelength: -1};
    layout.dragmode = false;
    Object.keys(layout).forEach(function (key) {
      if (!/^[xy]axis/.test(key)) { return; }
      layout[key] = Object.assign({gridcolor: colour("--line"), linecolor: colour("--muted")},
        layout[key], {automargin: true, fixedrange: true});
      if (layout[key].title) {
        layout[key].title = Object.assign({}, layout[key].title, {font: {size: narrow ? 11 : 13}});
      }
    });
    return made;
  }
  function draw() {
    document.querySelectorAll("script[data-for]").forEach(function (source) {
      var place = document.getElementById(source.getAttribute("data-for"));
      var made = dressed(JSON.parse(source.textContent), place.clientWidth < 520);
      window.Plotly.react(place, made.data, made.layout,
        {responsive: true, displayModeBar: false});
    });
  }
  function label() { button.textContent = isDark() ? "Light page" : "Dark page"; }
  function show() {
    label();
    if (window.Plotly) { draw(); }
  }

  var before = remembered();
  if (before === "dark" || before === "light") { root.setAttribute("data-theme", before); }
  button.addEventListener("click", function () {
    var next = isDark() ? "light" : "dark";
    root.setAttribute("data-theme", next);
    remember(next);
    show();
  });
  dark.addEventListener("change", show);
  show();

  // A page of a run that is still going asks its server on this machine whether there is more.
  if (document.body.hasAttribute("data-live")) {
    var pause = document.getElementById("pause");
    var paused = false;
    var seen = document.body.getAttribute("data-live");
    pause.addEventListener("click", function () {
      paused = !paused;
      pause.setAttribute("aria-pressed", String(paused));
    });
    window.setInterval(function () {
      if (paused) { return; }
      window.fetch("/state").then(function (answer) { return answer.text(); })
        .then(function (state) {
          if (state !== seen) { window.location.reload(); }
        }).catch(function () { return null; });
    }, 2000);
  }
}());
