// Small repairs for the pages: widgets and mathematics work together, and everything has a name.

// The theme's FontAwesome would replace the icon inside a Play button; the widget then throws, and
// every slider after it is dead. It runs before widgets are drawn, so that stopping it here is safe.
document.addEventListener("DOMContentLoaded", () => {
  if (window.FontAwesome) window.FontAwesome.noAuto();
});

// Opened as a file, the search may not read the pages that it finds, so it lists them without excerpts.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// Widgets typeset their labels through MathJax 2's queue; here is MathJax 3.
document.addEventListener("DOMContentLoaded", () => {
  const mathjax = window.MathJax;
  if (!mathjax || mathjax.Hub) return;
  let last = Promise.resolve();
  mathjax.Hub = {
    Queue: ([, , element]) => {
      const typeset = () => mathjax.typesetPromise([element]);
      last = last.then(() => mathjax.startup.promise).then(typeset).catch(console.warn);
    },
  };
});

// Names for what html-manager leaves without one.
const PLAY_NAMES = { play: "Play", pause: "Pause", stop: "Stop", retweet: "Repeat" };

function set(element, name, value) {
  if (value && element.getAttribute(name) !== value) element.setAttribute(name, value);
}

function nameSlider(box) {
  const label = box.querySelector(".widget-label")?.textContent.trim();
  const value = box.querySelector(".widget-readout")?.textContent.trim();
  for (const handle of box.querySelectorAll("[role=slider]")) {
    set(handle, "aria-label", label);
    set(handle, "aria-valuetext", value);
  }
  const readout = box.querySelector(".widget-readout[contenteditable]");
  if (readout) {
    set(readout, "role", "textbox");
    set(readout, "aria-label", label);
  }
}

function namePlay(box) {
  // Play has no label of its own; it stands before the slider that it moves.
  const label = box.nextElementSibling?.querySelector(".widget-label")?.textContent.trim();
  for (const button of box.querySelectorAll("button")) {
    const icon = button.querySelector("[class*=fa-]")?.className ?? "";
    const found = Object.keys(PLAY_NAMES).find((each) => icon.split(" ").includes(`fa-${each}`));
    const name = PLAY_NAMES[found] ?? "Play";
    set(button, "aria-label", label ? `${name}: ${label}` : name);
  }
}

// A box that scrolls sideways must be reachable by keyboard.
function reachScrollable(box) {
  const scrolls = box.scrollWidth > box.clientWidth + 1;
  if (scrolls && box.tabIndex < 0) {
    box.tabIndex = 0;
    set(box, "role", "group");
    set(box, "aria-label", "Scrolls sideways");
  }
}

// A formula in a line of text that is wider than the page scrolls in a box of its own.
function boxWide(formula) {
  const drawn = formula.querySelector("svg")?.getBoundingClientRect().width ?? 0;
  if (drawn <= formula.parentElement.closest("p, li, td, dd, div").clientWidth) return;
  formula.classList.add("wide");
  reachScrollable(formula);
}

function nameAll() {
  document.querySelectorAll(".bd-article mjx-container:not([display], .wide)").forEach(boxWide);
  document.querySelectorAll(".widget-inline-hbox").forEach(nameSlider);
  document.querySelectorAll(".widget-play").forEach(namePlay);
  document.querySelectorAll(".cell_output [title='null']").forEach((e) => e.removeAttribute("title"));
  document.querySelectorAll(".pst-scrollable-table-container, div.highlight pre")
    .forEach(reachScrollable);
}

let planned = false;
function plan() {
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    nameAll();
  });
}

// Roles of docutils that no longer exist, and a name that hides what a reader sees on the button.
function dropWrongNames() {
  document.querySelectorAll("details.hide > summary").forEach((each) => each.removeAttribute("aria-label"));
  document.querySelectorAll("[role=doc-biblioentry], .citation-list")
    .forEach((each) => each.removeAttribute("role"));
}

// A full stop after inline mathematics must not stand alone on the next line.
function keepStops() {
  for (const formula of document.querySelectorAll("span.math")) {
    const next = formula.nextSibling;
    const stop = next?.nodeType === Node.TEXT_NODE && next.data.match(/^[.,;:!?)\]]+/);
    if (!stop) continue;
    const together = document.createElement("span");
    together.className = "together";
    formula.before(together);
    next.splitText(stop[0].length);
    together.append(formula, next);
  }
}

// Paper is white: a page that is dark on the screen is printed in the light colours.
const page = document.documentElement;
let shownTheme;
window.addEventListener("beforeprint", () => {
  shownTheme = page.dataset.theme;
  page.dataset.theme = "light";
});
window.addEventListener("afterprint", () => {
  page.dataset.theme = shownTheme;
});

document.addEventListener("DOMContentLoaded", () => {
  dropWrongNames();
  keepStops();
  plan();
  window.MathJax?.startup?.promise?.then(plan);
  const seen = new MutationObserver(plan);
  // the icon of a Play button changes its class only
  const classes = { attributes: true, attributeFilter: ["class"] };
  const changes = { childList: true, subtree: true, characterData: true, ...classes };
  document.querySelectorAll(".cell_output").forEach((output) => seen.observe(output, changes));
});
window.addEventListener("load", plan);
window.addEventListener("resize", plan);
