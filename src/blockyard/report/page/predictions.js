// Pictures and sounds of predictions that runs have.

/** Show the pictures of each arm, and players of its sounds. Only what is inside the page is shown. */
function drawPredictions(body) {
  const shown = data.predictions.filter(({ arm, image }) => !state.hidden.has(arm)
    && typeof image === "string" && /^data:(image\/png|audio\/wav);base64,[A-Za-z0-9+/=]+$/.test(image));
  body.append(h("div", { class: "panels" }, shown.map(({ arm, seed, name, image }) => h("figure", { class: "panel" },
    image.startsWith("data:audio")
      ? h("audio", { controls: "", src: image, "aria-label": `${name} of ${arm}, seed ${seed}` })
      : h("img", { class: "prediction", src: image, alt: `${name} of ${arm}, seed ${seed}` }),
    h("figcaption", {}, h("strong", {}, arm), ` ${name}, seed ${seed}`)))));
}
