// A card that shows what a reference leads to: an equation, a theorem, a figure, a function.
// The contents were written by the build (tools/sphinx_previews.py) and are fetched when first needed.

window.bookPreviews = {};

(() => {
  const REST = 250; // milliseconds that the pointer must rest on a reference
  const root = () => new URL(document.documentElement.dataset.content_root ?? ".", location.href);

  // "chapters/domain.html" and "thm-domain-orders" for a link into the book, else null
  function destination(link) {
    const url = new URL(link.href, location.href);
    const inside = url.protocol === location.protocol && url.host === location.host;
    if (!inside || !url.hash || !url.pathname.startsWith(root().pathname)) return null;
    return [url.pathname.slice(root().pathname.length), decodeURIComponent(url.hash.slice(1))];
  }

  const asked = new Map(); // page -> promise of its previews
  function previewsOf(page) {
    if (!asked.has(page)) {
      const script = document.createElement("script");
      script.src = new URL(`previews/${page}.js`, root());
      const loaded = new Promise((done) => {
        script.onload = script.onerror = () => done(window.bookPreviews[page] ?? {});
      });
      document.head.append(script);
      asked.set(page, loaded);
    }
    return asked.get(page);
  }

  function makeCard() {
    const card = document.createElement("div");
    card.id = "preview";
    card.setAttribute("role", "tooltip");
    card.hidden = true;
    document.querySelector(".bd-article").append(card);
    return card;
  }

  function place(card, link) {
    const at = link.getBoundingClientRect();
    const article = card.offsetParent.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    const left = Math.max(8, Math.min(at.left, room - card.offsetWidth - 8));
    const above = at.top > card.offsetHeight + 16;
    const top = above ? at.top - card.offsetHeight - 8 : at.bottom + 8;
    card.style.left = `${left - article.left}px`;
    card.style.top = `${top - article.top}px`;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const article = document.querySelector(".bd-article");
    if (!article) return;
    const card = makeCard();
    let wanted = null; // the link whose card is shown or on its way
    let timer = 0;

    function hide() {
      clearTimeout(timer);
      wanted?.removeAttribute("aria-describedby");
      wanted = null;
      card.hidden = true;
    }

    async function show(link) {
      const [page, id] = destination(link);
      const html = (await previewsOf(page))[id];
      if (!html || wanted !== link) return;
      card.innerHTML = html;
      card.hidden = false;
      await window.MathJax?.typesetPromise?.([card]);
      if (wanted !== link) return;
      link.setAttribute("aria-describedby", card.id);
      place(card, link);
    }

    function rest(event) {
      const link = event.target.closest?.("a.internal[href*='#']");
      if (!link || link === wanted || link.closest("#preview") || !destination(link)) return;
      hide();
      wanted = link;
      timer = setTimeout(() => show(link), event.type === "focusin" ? 0 : REST);
    }

    function leave(event) {
      const to = event.relatedTarget;
      if (wanted && !(to && (wanted.contains(to) || card.contains(to)))) hide();
    }

    // a finger cannot rest on a link: there a reference is only followed
    if (matchMedia("(hover: hover)").matches) {
      article.addEventListener("mouseover", rest);
      article.addEventListener("mouseout", leave);
    }
    article.addEventListener("focusin", (event) => {
      if (event.target.matches?.(":focus-visible")) rest(event);
    });
    article.addEventListener("focusout", leave);
    document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  });
})();
