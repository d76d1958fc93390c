// Reloads the page when the relay reports a change. The page is complete without this script.
(() => {
  "use strict";
  const button = document.getElementById("follow");
  let follows = sessionStorage.getItem("follow") !== "no";
  let source = null;
  let timer = null;

  // No reload while a user types or selects: nothing may be lost.
  const isBusy = () => {
    const live = document.getElementById("live");
    if (!live) return true;
    const focused = document.activeElement;
    if (focused && live.contains(focused) && focused.matches("input:not([type=checkbox]), select, textarea")) return true;
    const isChanged = (it) => it.matches("select") ? ![...it.options].every((option) => option.selected === option.defaultSelected)
      && it.selectedIndex > 0 : it.type !== "hidden" && it.value !== it.defaultValue;
    if ([...live.querySelectorAll("input:not([type=checkbox]), select, textarea")].some(isChanged)) return true;
    return live.querySelector("input[name=row]:checked") !== null || !String(getSelection()).match(/^$/);
  };

  const show = (state) => {
    if (!button) return;
    button.hidden = false;
    button.setAttribute("aria-pressed", String(follows));
    button.textContent = follows ? (state === "lost" ? "Reconnecting" : "Live") : "Paused";
    button.dataset.state = follows ? state : "paused";
    button.title = follows ? "The page follows changes. Press to pause." : "The page stands still. Press to follow.";
  };

  const refresh = () => {
    if (follows && !document.hidden && !isBusy()) document.body.dispatchEvent(new Event("relay:change"));
  };

  const stop = () => {
    if (source) source.close();
    clearTimeout(timer);
    source = timer = null;
  };

  const start = () => {
    stop();
    if (!button || !follows || document.hidden) return;
    source = new EventSource("/events");
    source.addEventListener("open", () => show("live"));
    source.addEventListener("change", refresh);
    source.addEventListener("error", () => {
      show("lost");
      // A refusal ends the stream for good, so it is opened again later.
      if (source && source.readyState === EventSource.CLOSED) timer = setTimeout(() => { refresh(); start(); }, 30000);
    });
  };

  if (button) {
    button.addEventListener("click", () => {
      follows = !follows;
      sessionStorage.setItem("follow", follows ? "yes" : "no");
      show("live");
      if (follows) { start(); refresh(); } else { stop(); }
    });
    document.addEventListener("visibilitychange", () => { if (document.hidden) { stop(); } else { start(); refresh(); } });
    show("live");
    start();
  }

  // One box checks all boxes of the list.
  const arm = () => {
    const all = document.getElementById("choose-all");
    if (!all) return;
    all.hidden = document.getElementById("choose-all-name").hidden = false;
    all.addEventListener("change", () => {
      document.querySelectorAll("input[name=row]").forEach((box) => { box.checked = all.checked; });
    });
  };

  // Expanded parts stay expanded.
  let open = [];
  let left = 0;
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    // A response that arrives after the user pressed pause or began to type is dropped.
    if (event.detail.target.id === "live" && (!follows || isBusy())) event.detail.shouldSwap = false;
    // After the end of a login, the reload shows the login form.
    if (event.detail.xhr.status === 401) location.reload();
    open = [...document.querySelectorAll("#live details")].map((it) => [it.id, it.open]);
    left = scrollY;
  });
  document.body.addEventListener("htmx:afterSettle", () => {
    open.forEach(([id, isOpen]) => { const it = id && document.getElementById(id); if (it) it.open = isOpen; });
    scrollTo(scrollX, left);
    arm();
  });
  arm();
})();
