// How times and people read, and the only way in which this page makes elements: text is always text.

export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [size, unit, smaller, small] of [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]]) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / smaller);
      return rest ? `${Math.floor(whole / size)} ${unit} ${rest} ${small}` : `${Math.floor(whole / size)} ${unit}`;
    }
  }
  return `${whole} s`;
}

// What is left of a ttl: 7 of 10 s left.
export function remaining(left, ttl) {
  const seconds = Math.max(0, Math.floor(left));
  return ttl < 60 ? `${seconds} of ${Math.round(ttl * 10) / 10} s left` : `${duration(seconds)} of ${duration(ttl)} left`;
}

export function clock(moment) {
  const then = new Date(moment * 1000);
  const time = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const today = then.toDateString() === new Date().toDateString();
  return today ? time : `${then.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}`;
}

export function count(number, thing) {
  return `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;
}

// A new element: properties, then children; a string becomes a text node and nothing else.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

// Changes a text only where it differs, so that the browser has nothing to lay out again.
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
