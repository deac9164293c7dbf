// A page served by `blockyard board` asks its server for newer data and keeps what the reader has chosen.

const EVERY = 2000; // milliseconds

/** Start asking, where the page is a live one. */
function followBoard() {
  const address = document.documentElement.dataset.live;
  if (!address) return;
  const sign = document.getElementById("live");
  let [mark, wait] = [document.documentElement.dataset.etag || null, EVERY];
  const say = (kind, text) => {
    sign.className = `live ${kind}`;
    if (sign.textContent !== text) sign.textContent = text;
  };
  const ask = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch(address, { cache: "no-store", headers: mark ? { "If-None-Match": mark } : {} });
        if (answer.status === 200) {
          const fresher = await answer.json();
          mark = answer.headers.get("ETag");
          update(fresher);
        } else if (answer.status !== 304) throw new Error(`status ${answer.status}`);
        const busy = data.cells.filter((cell) => cell.state === "running").length;
        say("on", busy ? `live · ${busy} running` : "live");
        wait = EVERY;
      } catch {
        say("off", "the board has stopped; this is its last state");
        wait = Math.min(wait * 2, 30000);
      }
    }
    setTimeout(ask, wait);
  };
  say("on", "live");
  setTimeout(ask, EVERY / 4);
}

/** Put newer data in place of the old and draw again. */
function update(fresher) {
  const empty = !data.arms.length || state.metric === null || state.cost === null;
  data = fresher;
  if (empty) begin();
  build();
}
