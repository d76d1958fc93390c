// Reloads the page when the relay reports a change, and counts the age of what it shows. The page
// is complete without this script.
(() => {
  "use strict";
  const button = document.getElementById("follow");
  let follows = sessionStorage.getItem("follow") !== "no";
  let isLost = false;
  let source = null;
  let timer = null;

  // Why the page is not reloaded now: nothing that a user types or selects may be lost.
  const busy = () => {
    const live = document.getElementById("live");
    if (!live) return "this page does not change";
    const focused = document.activeElement;
    if (focused && live.contains(focused) && focused.matches("input:not([type=checkbox]), select, textarea")) return "you are typing";
    const isChanged = (it) => it.matches("select") ? ![...it.options].every((option) => option.selected === option.defaultSelected)
      && it.selectedIndex > 0 : it.type !== "hidden" && it.value !== it.defaultValue;
    if ([...live.querySelectorAll("input:not([type=checkbox]), select, textarea")].some(isChanged)) return "you are typing";
    const selected = live.querySelectorAll("input[name=row]:checked").length;
    if (selected > 0) return `${selected} selected`;
    return String(getSelection()) === "" ? "" : "text is selected";
  };

  // Where the navigation does not fit, a mark of this width shows that it goes on, not at its end.
  const MARK = 40;
  const mark = () => {
    const pages = document.getElementById("pages");
    if (pages) pages.classList.toggle("end", pages.scrollLeft + pages.clientWidth >= pages.scrollWidth - MARK);
  };

  // The age of what is shown: what the server said, and the time since. No clock is needed.
  let shown = null;
  const arrive = () => {
    const text = document.getElementById("as-of");
    shown = text && { text, age: Number(text.dataset.age), at: performance.now() };
    const pages = document.getElementById("pages");
    const tab = pages && pages.querySelector("[aria-current]");
    if (tab) pages.scrollLeft = tab.offsetLeft - (pages.clientWidth - tab.offsetWidth) / 2;
    if (pages) pages.onscroll = mark;
    mark();
  };
  const age = () => shown ? Math.floor((shown.age + performance.now() - shown.at) / 1000) : 0;
  const words = (seconds) => seconds < 60 ? `${seconds} s` : seconds < 3600 ? `${Math.floor(seconds / 60)} min`
    : `${Math.floor(seconds / 3600)} h`;

  // Ages from which a page that follows is old: without a connection, and with one.
  const OLD_LOST = 10;
  const OLD = 30;
  const AGE_SHOWN = 5;
  const narrow = matchMedia("(max-width: 44rem)");

  const show = () => {
    if (!shown) return;
    const seconds = age();
    // A page that follows is younger, so that its header does not change each second.
    const isAged = seconds >= AGE_SHOWN;
    shown.text.classList.toggle("aged", isAged);
    shown.text.querySelector(".age").textContent = isAged ? `${words(seconds)} ago` : "";
    // A page that does not follow changes ages as well.
    if (!button) return;
    const waits = busy();
    const state = !follows ? "off" : isLost ? "lost" : waits ? "waits" : "live";
    button.hidden = false;
    button.setAttribute("aria-pressed", String(follows));
    const text = { off: "Updates off", lost: "Connection lost, trying again", waits: `Live, waits: ${waits}`, live: "Live" }[state];
    const short = { off: "Off", lost: "Lost", waits: "Waits", live: "Live" }[state];
    const name = narrow.matches ? short : text;
    if (button.textContent !== name) button.textContent = name;
    button.dataset.state = state;
    button.title = follows ? `${text}: the page is reloaded after each change, at most every 2 seconds. Press to switch this off.`
      : "The page stands still and grows old. Press to follow changes.";
    const isOld = state === "lost" && seconds > OLD_LOST || state === "live" && seconds > OLD;
    const stale = document.getElementById("stale");
    stale.hidden = !isOld;
    shown.text.classList.toggle("old", isOld);
    const told = isOld ? `This is ${words(seconds)} old: the relay ${isLost ? "does not answer" : "answers slowly"}.` : "";
    if (stale.textContent !== told) stale.textContent = told;
  };

  const refresh = () => {
    if (follows && !document.hidden && busy() === "") document.body.dispatchEvent(new Event("relay:change"));
  };

  const stop = () => {
    if (source) source.close();
    clearTimeout(timer);
    source = timer = null;
  };

  const start = () => {
    stop();
    if (!button || !follows || document.hidden) return;
    source = new EventSource(button.dataset.events);
    source.addEventListener("open", () => { if (isLost) refresh(); isLost = false; show(); });
    source.addEventListener("change", refresh);
    source.addEventListener("error", () => {
      isLost = true;
      show();
      // A refusal ends the stream for good, so it is opened again later.
      if (source && source.readyState === EventSource.CLOSED) timer = setTimeout(() => { refresh(); start(); }, 30000);
    });
  };

  if (button) {
    button.addEventListener("click", () => {
      follows = !follows;
      sessionStorage.setItem("follow", follows ? "yes" : "no");
      isLost = false;
      show();
      if (follows) { start(); refresh(); } else { stop(); }
    });
    document.addEventListener("visibilitychange", () => { if (document.hidden) { stop(); } else { start(); refresh(); } });
    start();
  }

  // Copies what is shown. Browsers offer this on encrypted pages and on this machine only.
  if (navigator.clipboard) {
    document.documentElement.classList.add("copies");
    document.addEventListener("click", (event) => {
      const copy = event.target instanceof Element && event.target.closest(".copy");
      if (!copy) return;
      const told = (text) => { copy.firstElementChild.textContent = text; };
      const again = () => setTimeout(() => told("Copy"), 2000);
      navigator.clipboard.writeText(copy.dataset.copy).then(() => told("Copied"), () => told("Not copied")).then(again);
    });
  }

  // A confirmation answers a form, and browsers do not keep it: to come back to it would mean to send
  // that form again. The history has the page that its link leads back to instead.
  if (/\/(dead|keys|replay)\/confirm$/.test(location.pathname)) {
    const back = document.querySelector("#content a.button");
    if (back) {
      history.replaceState(null, "", back.href);
      // Browsers may also keep the confirmation as it was.
      addEventListener("pageshow", (event) => { if (event.persisted) location.replace(back.href); });
    }
  }

  // Buttons for selected messages need some.
  const enable = () => {
    const none = !document.querySelector("input[name=row]:checked");
    document.querySelectorAll("button[data-selected]").forEach((it) => { it.disabled = none; });
  };

  // One box checks all boxes of the list.
  const arm = () => {
    enable();
    const all = document.getElementById("choose-all");
    if (!all) return;
    document.getElementById("choose-all-name").hidden = false;
    all.addEventListener("change", () => {
      document.querySelectorAll("input[name=row]").forEach((box) => { box.checked = all.checked; });
    });
  };

  // Expanded parts stay expanded.
  let open = [];
  let left = 0;
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const { target, xhr } = event.detail;
    // The login of an application may answer in the place of the page, or the page changes no more.
    const isOther = target.id === "live" && xhr.status === 200 && !xhr.responseText.includes("id=\"live\"");
    // A response that arrives after the user switched updates off or began to type is dropped.
    const isLate = target.id === "live" && (!follows || busy() !== "");
    if (isOther || isLate) event.detail.shouldSwap = false;
    // After the end of a login, the reload shows the login form.
    if (xhr.status === 401 || xhr.status === 403 || isOther && !isLate) location.reload();
    open = [...document.querySelectorAll("#live details")].map((it) => [it.id, it.open]);
    left = scrollY;
  });
  document.body.addEventListener("htmx:afterSettle", () => {
    open.forEach(([id, isOpen]) => { const it = id && document.getElementById(id); if (it) it.open = isOpen; });
    scrollTo(scrollX, left);
    arrive();
    arm();
    show();
  });
  document.body.addEventListener("change", () => { enable(); show(); });
  // Browsers restore what was checked after the page was read.
  addEventListener("pageshow", () => { enable(); show(); });
  addEventListener("resize", mark);
  // On a phone, the plots would be most of the page.
  const hour = document.getElementById("last-hour");
  if (hour && narrow.matches) hour.open = false;
  arrive();
  arm();
  show();
  setInterval(show, 1000);
})();
