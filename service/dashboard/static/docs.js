"use strict";
// No validator: it is another host's, and would be told this service's address.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
