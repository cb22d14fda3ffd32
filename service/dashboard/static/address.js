// <service-address>: the service's address, which the browser alone knows behind proxies. This script is not deferred:
// a line that took more room once its address is filled in would move what follows.
customElements.define("service-address", class extends HTMLElement {
  connectedCallback() {
    this.textContent = location.origin;
  }
});
