// All pages work without this: it follows the cluster, copies, switches the theme, and takes keys.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("scripted");
  const stored = (value) => {
    try {
      if (value !== undefined) localStorage.setItem("metaq-theme", value);
      return localStorage.getItem("metaq-theme");
    } catch {
      return value ?? null;
    }
  };
  const theme = stored();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;

  const switchTheme = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    stored(root.dataset.theme);
  };

  const copy = async (button) => {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  };

  // A part that somebody marks text in, or types into, waits for the next change.
  const busy = (part) => {
    const selection = getSelection();
    if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return true;
    const active = document.activeElement;
    return part.contains(active) && active.matches("input, select, textarea");
  };

  const replace = ({ id, is, html }) => {
    const part = document.getElementById(id);
    if (!part) {
      // There is more on the page than when it was loaded: the cluster is back, for one.
      if (!document.activeElement.matches("input, select, textarea")) location.reload();
      return;
    }
    if (part.dataset.is === is || busy(part)) return;
    const active = part.contains(document.activeElement) ? document.activeElement : null;
    const place = active && [...part.querySelectorAll("a, button, [tabindex]")].indexOf(active);
    const scrolled = [...part.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
    const open = [...part.querySelectorAll("details")].map((one) => one.open);
    part.innerHTML = html;
    part.dataset.is = is;
    part.querySelectorAll(".scroll").forEach((one, index) => {
      if (scrolled[index]) [one.scrollLeft, one.scrollTop] = scrolled[index];
    });
    part.querySelectorAll("details").forEach((one, index) => { one.open = open[index] ?? one.open; });
    if (active) part.querySelectorAll("a, button, [tabindex]")[place]?.focus({ preventScroll: true });
  };

  let source = null;
  const follow = () => {
    if (source || !document.querySelector("[data-is]") || !document.querySelector("main[data-live]")) return;
    source = new EventSource("/live?of=" + encodeURIComponent(location.pathname + location.search));
    const sign = document.getElementById("following");
    source.addEventListener("open", () => { sign.hidden = false; });
    source.addEventListener("error", () => { sign.hidden = true; });
    source.addEventListener("part", (event) => replace(JSON.parse(event.data)));
    source.addEventListener("over", () => { source.close(); location.reload(); });
  };

  let went = 0;
  const key = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    if (event.key === "/") {
      const search = document.querySelector("input[type=search]");
      if (search) {
        event.preventDefault();
        search.focus();
        search.select();
      }
    } else if (event.key === "g") {
      went = event.timeStamp;
    } else if (event.timeStamp - went < 1500) {
      went = 0;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
    }
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "theme") switchTheme();
    else if (button.dataset.copy !== undefined) copy(button);
  });
  document.addEventListener("keydown", key);
  document.addEventListener("DOMContentLoaded", follow);
  // A page in the background is not followed: it is up to date a moment after it is looked at again.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else {
      follow();
    }
  });
})();
