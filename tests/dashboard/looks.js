// What can be measured of how the page looks, for everybody who looks at it, or does not see it.
({
  /** `[how many texts, what can hardly be told from its ground]`: WCAG 1.4.3 and 1.4.11, with the colours that are computed. */
  contrasts() {
    const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
      return [...context.getImageData(0, 0, 1, 1).data];
    };
    const light = (rgb) => {
      const [r, g, b] = rgb.map((each) => (each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (one, other) => {
      const [high, low] = [light(one.slice(0, 3)), light(other.slice(0, 3))].sort((a, b) => b - a);
      return (high + 0.05) / (low + 0.05);
    };
    const ground = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const found = rgba(getComputedStyle(at).backgroundColor);
        if (found[3] === 255) return found;
      }
      return rgba("white");
    };
    const poor = [];
    const note = (element, what, found, least) => {
      if (found < least) poor.push(`${element.tagName}.${element.className}#${element.id} ${what} ${found.toFixed(2)}`);
    };
    let looked = 0;
    for (const element of document.querySelectorAll("body *")) {
      if (!element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || element.closest(":disabled, svg")) continue;
      const style = getComputedStyle(element);
      if ([...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())) {
        looked += 1;
        note(element, "text", ratio(rgba(style.color), ground(element)), 4.5);
      }
      if (element.matches("input, textarea, select, button:not(.quiet, .pick, [role=tab], [role=switch])")) {
        note(element, "border", ratio(rgba(style.borderTopColor), ground(element.parentElement)), 3);
      }
      if (element.matches("[role=switch]")) {
        const track = rgba(getComputedStyle(element, "::before").backgroundColor);
        note(element, "switch", ratio(track, ground(element)), 3);
        note(element, "knob", ratio(rgba(getComputedStyle(element, "::after").backgroundColor), track), 3);
      }
      if (element.matches("input, textarea") && element.placeholder) {
        note(element, "placeholder", ratio(rgba(getComputedStyle(element, "::placeholder").color), ground(element)), 4.5);
      }
    }
    return [looked, poor];
  },

  /** `[what has the focus, whether one sees that, whether it is nothing]`. */
  focus() {
    const at = document.activeElement, style = getComputedStyle(at);
    const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
    return [at.id || at.getAttribute("aria-label") || at.textContent.slice(0, 40), seen, at === document.body];
  },

  /** What a reader of the screen could only call by its kind. */
  unnamed() {
    const all = document.querySelectorAll("button, input, textarea, select, [role=img], summary, pre[tabindex]");
    const isNamed = (each) => each.getAttribute("aria-label") || each.labels?.length || each.textContent.trim();
    return [...all].filter((each) => each.checkVisibility() && !isNamed(each)).map((each) => each.outerHTML);
  },

  /** What is hard to tap: less than `least` pixels high or wide, a box with its label. */
  small(least) {
    const all = [...document.querySelectorAll("button, input, textarea, select, summary")].filter((each) => each.checkVisibility());
    const sizes = all.map((each) => [each, (each.type === "checkbox" ? each.closest("label") : each).getBoundingClientRect()]);
    return sizes.filter(([, box]) => box.height < least || box.width < least).map(([each, box]) => [each.outerHTML, box.width, box.height]);
  },

  /** What moves by itself when something changes. */
  moving() {
    const parts = [null, "::before", "::after"];
    return [...document.querySelectorAll("*")].filter((each) => parts.some((part) => getComputedStyle(each, part).transitionDuration !== "0s")).length;
  },
})
