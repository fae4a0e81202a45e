document.querySelectorAll("[data-worker]").forEach(function (box) {
  box.addEventListener("change", function () {
    document.querySelectorAll("svg ." + box.dataset.worker).forEach(function (part) {
      part.classList.toggle("hidden", !box.checked);
    });
  });
});
