"use strict";
// No validator: it is on another host, and would learn this service's address.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
