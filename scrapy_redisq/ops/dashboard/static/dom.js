// Describes what a page shows, and changes the document to that: h() makes a description, render()
// compares it with what is there. Text is only ever text: nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";
const IN_SVG = new Set(["svg", "path", "polyline"]);
const AS_PROPERTY = new Set(["value", "checked", "disabled", "open", "indeterminate"]);

// props: attributes; on…: a listener; `hook` {create(node), update(node), remove(node)}: the node's
// content is somebody else's; `key` tells it from its siblings.
export function h(tag, props, ...children) {
  return { tag, props: props || {}, children: children.flat(Infinity).filter(isShown) };
}

const isShown = (child) => child !== null && child !== undefined && child !== false && child !== "";

export function render(root, ...children) {
  patchChildren(root, children.flat(Infinity).filter(isShown));
}

function patchChildren(parent, wanted) {
  const keyed = new Map();
  for (const node of parent.childNodes) {
    const key = node.described?.props.key;
    if (key !== undefined) keyed.set(key, node);
  }
  let place = parent.firstChild;
  for (const child of wanted) {
    const key = child.props?.key;
    const there = key === undefined ? place : keyed.get(key);
    if (there && fits(there, child)) {
      if (there === place) place = place.nextSibling;
      else parent.insertBefore(there, place);
      patch(there, child);
    } else {
      parent.insertBefore(create(child), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    remove(place);
    place = next;
  }
}

function fits(node, child) {
  if (typeof child !== "object") return node.nodeType === Node.TEXT_NODE;
  return node.described?.tag === child.tag && node.described.props.key === child.props.key;
}

function create(child) {
  if (typeof child !== "object") return document.createTextNode(String(child));
  const node = IN_SVG.has(child.tag)
    ? document.createElementNS(SVG, child.tag)
    : document.createElement(child.tag);
  node.described = { tag: child.tag, props: {} };
  setProps(node, child.props);
  if (child.props.hook) child.props.hook.create(node);
  else patchChildren(node, child.children);
  setLate(node, child.props);
  return node;
}

function patch(node, child) {
  if (typeof child !== "object") {
    if (node.data !== String(child)) node.data = String(child);
    return;
  }
  setProps(node, child.props);
  if (child.props.hook) child.props.hook.update(node);
  else patchChildren(node, child.children);
  setLate(node, child.props);
}

// A select can have its value only when it has its options.
function setLate(node, props) {
  if (node.tagName === "SELECT" && "value" in props && node.value !== props.value) {
    node.value = props.value;
  }
}

function remove(node) {
  for (const inner of node.querySelectorAll?.("*") ?? []) inner.described?.props.hook?.remove?.(inner);
  node.described?.props.hook?.remove?.(node);
  node.remove();
}

function setProps(node, props) {
  const before = node.described.props;
  for (const name of Object.keys(before)) {
    if (!(name in props)) set(node, name, null);
  }
  for (const [name, value] of Object.entries(props)) {
    // What a person has typed is left alone until there is another value to show.
    if (value !== before[name] || (AS_PROPERTY.has(name) && name !== "value")) set(node, name, value);
  }
  node.described.props = props;
}

function set(node, name, value) {
  if (name === "key" || name === "hook") return;
  if (name.startsWith("on")) node[name] = value;
  else if (AS_PROPERTY.has(name)) {
    if (node[name] !== value && !(name === "value" && node === document.activeElement)) {
      node[name] = value ?? "";
    }
    if (node.tagName === "OPTION") node.setAttribute(name, value); // "" is a value, too
  } else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
}
