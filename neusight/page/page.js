// What the browser does by itself: history, links that take the question along, and the look of an answer that is old.
window.asking = (() => {
  let query = location.search, later, gesture = 0, entry = 0;
  const dim = (on, failed = false) => {
    const place = document.querySelector(".shown");
    if (!place) return;
    clearTimeout(later);
    place.classList.toggle("asking", on);
    place.setAttribute("aria-busy", on);
    if (!on) place.classList.toggle("failed", failed);
  };
  // A question is being answered; who drags sees the old answer fade only if the new one does not follow at once.
  const ask = (now, patient) => {
    query = now;
    if (!patient) return dim(true);
    clearTimeout(later);
    later = setTimeout(dim, 100, true);
  };
  // From a key or pointer going down until another does, however late its events are handled.
  for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, (e) => { if (!e.repeat) gesture++; }, true);
  // The answer is an entry of the history: one for all answers to a gesture, another for each edit (0).
  const point = (now, of) => {
    if (location.search === now) return true;
    history[of && of === entry ? "replaceState" : "pushState"]({}, "", location.pathname + now);
    entry = of;
    return true;
  };
  // The answer is there, or has been overtaken by another question: what is said of it and charts are other at once.
  const answered = (charts, said, newest) => {
    if (said) document.querySelector(".said").textContent = said;
    neusight.draw(charts);
    if (newest) dim(false);
  };
  const failed = () => dim(false, true);
  document.addEventListener("input", (e) => {
    if (!e.target.closest(".question")) return;
    dim(true);
    // Text that ends up as it was asks nothing.
    later = setTimeout(dim, 1000, false);
  }, true);
  window.addEventListener("popstate", () => {
    dim(true);
    emitEvent("went", (query = location.search));
  });
  for (const kind of ["pointerdown", "focusin", "click"]) document.addEventListener(kind, (e) => {
    const link = e.target.closest && e.target.closest(".views a, .links a");
    if (link) link.search = query;
  }, true);
  const focus = (id) => {
    const to = document.getElementById(id);
    if (to) to.scrollIntoView({ block: "center" }), to.focus();
  };
  const switchDark = () => {
    const dark = !document.body.classList.contains("body--dark");
    Quasar.Dark.set(dark);
    document.cookie = `dark=${dark ? 1 : 0}; path=/; SameSite=Strict`;
  };
  // A file that is dropped anywhere on the page is uploaded.
  const drop = (upload) => {
    document.body.addEventListener("dragover", (e) => e.preventDefault());
    document.body.addEventListener("drop", (e) => {
      e.preventDefault();
      getElement(upload).$refs.qRef.addFiles(e.dataTransfer.files);
    });
  };
  // Once a chart is drawn, it tells where on its first axis somebody drags.
  const drag = (id) => {
    const wait = setInterval(() => {
      const plot = getElement(id);
      if (!plot?.chart?.getOption()) return;
      clearInterval(wait);
      plot.chart.getDom().classList.add("draggable");
      const render = plot.chart.getZr();
      let down = false, last = 0;
      const send = (e, end) => {
        if (!end && performance.now() - last < 25) return;
        last = performance.now();
        const [value] = plot.chart.convertFromPixel({ seriesIndex: 0 }, [e.offsetX, e.offsetY]);
        emitEvent("dragged", [value, gesture]);
      };
      render.on("mousedown", (e) => {
        down = plot.chart.containPixel("grid", [e.offsetX, e.offsetY]);
        if (down) send(e, true);
      });
      render.on("mousemove", (e) => { if (down) send(e, false); });
      render.on("mouseup", (e) => {
        if (down) send(e, true);
        down = false;
      });
      render.on("globalout", () => { down = false; });
    }, 50);
  };
  return { gesture: () => gesture, ask, point, answered, failed, focus, switchDark, drop, drag };
})();
